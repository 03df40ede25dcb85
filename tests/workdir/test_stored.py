import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import open_run

from jaxtrain.errors import UsageError
from jaxtrain.workdir import (
    StoredRun,
    eval_path,
    read_run,
    try_write_eval,
    try_write_eval_file,
)


@pytest.fixture
def run(open_place, config):
    path = open_place / "runs" / "mnist_mlp-0123abcd"
    with open_run(path, config()):
        pass
    return path


def test_reads_a_run(run, config):
    assert read_run(run) == StoredRun(run, config())
    assert read_run(str(run)) == read_run(run)


def test_reads_a_held_run(run, config):
    with open_run(run, config()):
        assert read_run(run).config == config()


def test_reads_a_read_only_run_and_writes_nothing(run, read_only):
    before = sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*"))
    with read_only(run.parent):
        read_run(run)
        warnings = [
            try_write_eval(run, "test-3.json", {"loss": 1.0}),
            try_write_eval_file(run, "test-3.csv", b"a"),
        ]
    for warning in warnings:
        assert "Permission denied" in warning
        assert str(run) in warning
        assert "\n" not in warning
    assert sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*")) == before


def test_a_run_that_may_not_be_read_is_named(run, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(UsageError, match=r"0123abcd cannot be read: Permission denied; make it"):
        read_run(run)


def test_an_absent_run_is_answered_with_near_ones(run, open_place, monkeypatch):
    monkeypatch.chdir(run)
    with pytest.raises(UsageError, match=r"does not exist; did you mean .*mnist_mlp-0123abcd\?"):
        read_run(run.with_name("mnist_mlp-0123abce"))
    monkeypatch.chdir(open_place)
    with pytest.raises(UsageError, match=r"did you mean runs/mnist_mlp-0123abcd\?"):
        read_run("mnist_mlp")
    with pytest.raises(UsageError, match=r"did you mean runs/mnist_mlp-0123abcd\?"):
        read_run("runs/zzz")


def test_a_folder_inside_a_run_is_answered_with_the_run(run):
    (run / "checkpoints" / "3").mkdir(parents=True)
    with pytest.raises(UsageError, match=rf"no config.json; did you mean {run}\?"):
        read_run(run / "checkpoints" / "3")


def test_what_is_no_run_is_named(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="there is no run beside"):
        read_run(tmp_path / "nothing")
    with pytest.raises(UsageError, match="is a file"):
        read_run(run / "config.json")
    with pytest.raises(UsageError, match="must be a local folder, or one in a bucket"):
        read_run("s3://bucket/run")


def test_a_damaged_config_is_named(run):
    (run / "config.json").write_text("{")
    with pytest.raises(UsageError, match=r"config\.json"):
        read_run(run)


def test_writes_an_evaluation(run):
    for loss in (1.0, float("nan")):
        assert try_write_eval(run, "test-3.json", {"loss": loss}) is None
    assert json.loads((run / "eval" / "test-3.json").read_text()) == {"loss": None}
    assert os.listdir(run / "eval") == ["test-3.json"]


def test_writes_another_file_of_an_evaluation(run):
    for content in (b"\x89PNG", b"\xff\n"):
        assert try_write_eval_file(run, "test-3-hardest.png", content) is None
        assert eval_path(run, "test-3-hardest.png").read_bytes() == content
    assert os.listdir(run / "eval") == ["test-3-hardest.png"]


def test_a_full_disk_while_evaluating_is_a_warning(run, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert "No space left" in try_write_eval(run, "test-3.json", {"loss": 1.0})
    assert os.listdir(run / "eval") == []


def test_neither_jax_nor_tensorflow_is_imported():
    code = "import jaxtrain.workdir, sys; print({'jax', 'tensorflow'} & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert result.stdout == "set()\n"
