"""A run's folder in a bucket: its files and its logs."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bucket_service import Service, serve
from etils import epath
from helpers import open_run

from jaxtrain.config import load_json
from jaxtrain.errors import CheckpointError, UsageError
from jaxtrain.files import bucket, place
from jaxtrain.workdir import fresh_path, read_run, try_write_eval
from jaxtrain.workdir.staged import Staged

EVENT = '{"step": 1, "time": 5.0, "split": "train"}\n'


def test_a_new_run_then_a_resumed_one(
    service: Service, run: str, config: Callable[..., Any]
) -> None:
    place_of = f"gs://bucket/{run}"
    with open_run(place_of, config()) as first:
        assert (str(first.path), first.extended, first.previous) == (place_of, False, None)
        assert service.names(run) == [".lock", "classes.json", "config.json", "data.json"]
        assert str(first.checkpoints_dir) == f"{place_of}/checkpoints"
        assert first.metrics_path.parent.name == first.tensorboard_dir.parent.name == run
        first.metrics_path.write_text(EVENT)
        first.publish()
        assert service.read(f"{run}/metrics.jsonl").decode() == EVENT
        first.metrics_path.write_text(EVENT * 2)
    assert service.read(f"{run}/metrics.jsonl").decode() == EVENT * 2
    assert not first.metrics_path.parent.parent.exists()
    with open_run(place_of, config(report__every_steps=7)) as second:
        assert second.previous == config()
        assert second.finished() is None
        assert second.metrics_path.read_text() == EVENT * 2
        second.write_result({"status": "finished", "step": 3, "train": 1, "eval": 1, "best": None})
        assert second.finished()
    assert load_json(place(place_of) / "config.json") == config(report__every_steps=7)
    with (
        pytest.raises(UsageError, match=f"workdir {place_of} holds a run with another config"),
        open_run(place_of, config(seed=3)),
    ):
        pass
    assert service.names(run) == sorted(
        ["classes.json", "config.json", "data.json", "metrics.jsonl", "result.json"]
    )
    with open_run(place_of, config(train__epochs=9), extend=True) as longer:
        assert longer.finished() is None


def test_an_error_brings_the_logs_too(
    service: Service, run: str, config: Callable[..., Any]
) -> None:
    def fail(path: Path) -> None:
        path.write_text(EVENT)
        raise RuntimeError

    with pytest.raises(RuntimeError), open_run(f"gs://bucket/{run}", config()) as opened:
        fail(opened.metrics_path)
    assert service.read(f"{run}/metrics.jsonl").decode() == EVENT
    assert ".lock" not in service.names(run)


def test_event_files_are_emptied_and_removed_there_as_well(
    service: Service, run: str, config: Callable[..., Any]
) -> None:
    service.write(f"{run}/tensorboard/old", b"")
    service.write(f"{run}/tensorboard/older", b"events")
    service.write(f"{run}/config.json", b"{}")
    staged = Staged(place(f"gs://bucket/{run}"))
    staged.publish()
    assert service.read(f"{run}/tensorboard/older") == b"events"
    folder = staged.folder / "tensorboard"
    assert [(file.name, file.stat().st_size > 0) for file in sorted(folder.iterdir())] == [
        ("old", False),
        ("older", True),
    ]
    (folder / "new").write_bytes(b"more")
    os.truncate(folder / "older", 0)
    (folder / "old").unlink()
    staged.publish()
    assert service.names(f"{run}/tensorboard") == ["new", "older"]
    assert service.read(f"{run}/tensorboard/older") == b""
    assert service.read(f"{run}/tensorboard/new") == b"more"
    staged.remove()


KILLED = """
import os, signal, sys
from jaxtrain.files import place
from jaxtrain.workdir.staged import Staged
staged = Staged(place(sys.argv[1]))
(staged.folder / "metrics.jsonl").write_text("lost")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_leaves_is_removed_by_the_next(
    service: Service, run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    where = f"gs://bucket/{run}"
    live = Staged(place(where))
    (tmp_path / "jaxtrain-logs-new").mkdir()  # of a process that has just begun
    (tmp_path / "jaxtrain-logs-link").symlink_to(live.folder.parent)
    subprocess.run(
        [sys.executable, "-c", KILLED, where],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
        timeout=100,
    )
    (left,) = tmp_path.glob("*/*/metrics.jsonl")
    other = Staged(place(where))
    assert not left.parent.parent.exists()
    assert live.folder.exists()
    live.remove()
    other.remove()
    assert sorted(folder.name for folder in tmp_path.iterdir()) == [
        "jaxtrain-logs-link",
        "jaxtrain-logs-new",
    ]


def test_foreign_folders_are_refused(
    service: Service, run: str, config: Callable[..., Any]
) -> None:
    service.write(f"{run}/holiday.jpg", b"")
    with (
        pytest.raises(UsageError, match=r"holds holiday\.jpg but no config\.json"),
        open_run(f"gs://bucket/{run}", config()),
    ):
        pass
    assert service.names(run) == ["holiday.jpg"]


def test_reading_and_what_it_finds(service: Service, run: str, config: Callable[..., Any]) -> None:
    where = place(f"gs://bucket/{run}")
    assert fresh_path(where) == where
    with pytest.raises(UsageError, match=f"workdir {where} does not exist; there is no run beside"):
        read_run(where)
    with open_run(where, config()):
        pass
    assert str(fresh_path(where)) == f"gs://bucket/{run}-2"
    found = read_run(f"gs://bucket/{run}/")
    assert (found.path, found.config) == (where, config())
    with pytest.raises(UsageError, match=rf"did you mean {where}\?"):
        read_run(where / "checkpoints")
    assert try_write_eval(where, "test-3.json", {"loss": float("nan")}) is None
    assert json.loads(service.read(f"{run}/eval/test-3.json")) == {"loss": None}


def test_a_folder_has_a_name(service: Service) -> None:
    for path in ("gs://", "gs://bucket", "gs://bucket/"):
        with pytest.raises(UsageError, match="names no folder in a bucket"):
            read_run(path)


def test_a_service_that_went_away_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as short:
        gone = short.bucket
    monkeypatch.setattr(bucket, "_split", lambda path: (gone, "run/x"))
    monkeypatch.setattr(bucket, "WRITE_SECONDS", 0.5)
    said = "cannot write gs://bucket/run/x: ConnectionRefusedError: .*; run the same command again"
    with pytest.raises(CheckpointError, match=said):
        bucket.write_whole(epath.Path("gs://bucket/run/x"), b"")
