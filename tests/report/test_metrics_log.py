import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.errors import CheckpointError, UsageError
from jaxtrain.report import MetricsLog


def event(step, **values):
    return {"step": step, "time": 5.0, "split": "train"} | values


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def filled(path, steps):
    log = MetricsLog(path)
    for step in steps:
        log.append(event(step, loss=1 / step))
    log.close()
    return log


def test_each_event_is_a_line_at_once(path):
    log = MetricsLog(path)
    log.append(event(1, loss=0.5))
    assert path.read_text() == '{"step": 1, "time": 5.0, "split": "train", "loss": 0.5}\n'
    log.append(event(2))
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]
    assert log.read() == [event(1, loss=0.5), event(2)]
    log.flush()
    log.close()


def test_lines_are_strict_json_of_plain_numbers(path):
    log = MetricsLog(path)
    written = log.append(
        event(np.int64(3), loss=math.nan, a=math.inf, b=np.float32(0.5), c=None, d=True, e=10**20)
    )
    log.close()
    line = path.read_text()
    assert json.loads(line, parse_constant=pytest.fail) == written
    assert written == event(3, loss=None, a=None, b=0.5, c=None, d=True, e=10**20)
    assert type(written["step"]) is int


def test_nothing_is_made_before_the_first_event(path):
    log = MetricsLog(path)
    assert log.read() == []
    log.resume(0)
    log.flush()
    log.close()
    assert not path.exists()


def test_resume_keeps_exactly_the_lines_up_to_the_step(path):
    log = filled(path, [10, 20, 20, 30])
    kept = path.read_bytes().splitlines(keepends=True)[:3]
    log.resume(29)
    assert path.read_bytes() == b"".join(kept)
    log.append(event(30, loss=7.0))
    log.close()
    assert [line["step"] for line in log.read()] == [10, 20, 20, 30]
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("split", ["test", "train"])
def test_resume_drops_an_evaluation_that_comes_again(path, split):
    log = MetricsLog(path)
    for step in (10, 20):
        log.append(event(step, learning_rate=0.1))
        log.append(event(step, split=split))
    log.close()
    first, second, third, _ = path.read_bytes().splitlines(keepends=True)
    log.resume(20)
    assert len(log.read()) == 4
    log.resume(20, evaluates=True)
    assert path.read_bytes() == first + second + third


def test_resume_does_not_touch_a_file_that_is_right(path):
    log = filled(path, [10, 20])
    before = path.stat()
    log.resume(20)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_resume_takes_an_open_log_back(path):
    log = MetricsLog(path)
    log.append(event(1))
    log.append(event(2))
    log.resume(1)
    log.append(event(2, loss=1.0))
    log.close()
    assert log.read() == [event(1), event(2, loss=1.0)]


@pytest.mark.parametrize("tail", ['{"step": 3', "{", '{"step": 3, "ti\xff', "nonsense", "3"])
def test_a_half_written_last_line_is_dropped(path, tail):
    log = filled(path, [1, 2])
    whole = path.read_bytes()
    path.write_bytes(whole + tail.encode("latin1"))
    assert [line["step"] for line in log.read()] == [1, 2]
    log.resume(5)
    assert path.read_bytes() == whole


def test_a_last_line_that_lacks_only_its_end_is_kept(path):
    log = filled(path, [1, 2])
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    log.resume(5)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "bad",
    [
        "nonsense",
        "",
        "[1]",
        '{"time": 3, "split": "train"}',
        '{"step": "3", "time": 3, "split": "train"}',
        '{"step": 3, "split": "train"}',
        '{"step": 3, "time": 3}',
        '{"step": 3, "time": 3, "split": "train", "loss": [1]}',
        "\xff",
    ],
)
def test_a_damaged_line_in_the_middle_is_named(path, bad):
    log = filled(path, [1, 2])
    first, second = path.read_bytes().splitlines(keepends=True)
    content = first + bad.encode("latin1") + b"\n" + second
    path.write_bytes(content)
    for call in (log.read, lambda: log.resume(5)):
        with pytest.raises(UsageError, match=r"metrics\.jsonl: line 2 is not an event"):
            call()
    assert path.read_bytes() == content


@given(
    steps=st.lists(st.integers(1, 50), max_size=8),
    step=st.integers(0, 60),
    cut=st.floats(0, 1),
)
def test_a_log_cut_anywhere_resumes(tmp_path_factory, steps, step, cut):
    path = tmp_path_factory.mktemp("log") / "metrics.jsonl"
    log = filled(path, steps)
    content = path.read_bytes() if steps else b""
    cut_content = content[: round(cut * len(content))]
    path.write_bytes(cut_content)
    log.resume(step)
    lines = content.splitlines(keepends=True)
    # A line is whole once its brace is there.
    ends = [len(b"".join(lines[: index + 1])) - 1 for index in range(len(lines))]
    whole = [line for line, end in zip(lines, ends, strict=True) if len(cut_content) >= end]
    assert path.read_bytes() == b"".join(line for line in whole if json.loads(line)["step"] <= step)


def test_a_full_disk_is_one_line(path):
    log = MetricsLog(Path("/dev/full"))
    with pytest.raises(CheckpointError, match=r"/dev/full: No space left on device; make room"):
        log.append(event(1))
    log.close()


def test_a_full_disk_while_resuming_keeps_the_file(path, monkeypatch):
    log = filled(path, [1, 2])
    content = path.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left"):
        log.resume(1)
    assert path.read_bytes() == content


def test_an_unreadable_log_is_one_line(path):
    path.mkdir()
    with pytest.raises(UsageError, match="cannot read"):
        MetricsLog(path).read()


def test_neither_jax_nor_tensorflow_is_imported():
    code = "import jaxtrain.report, sys; print({'jax', 'tensorflow', 'rich'} & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert result.stdout == "set()\n"
