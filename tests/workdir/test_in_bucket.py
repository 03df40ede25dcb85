"""A run's folder in a bucket: its lease and its logs."""

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bucket_service import Service, serve
from etils import epath
from helpers import open_run

from jaxtrain.config import load_json
from jaxtrain.errors import CheckpointError, UsageError
from jaxtrain.files import bucket, place
from jaxtrain.workdir import Workdir, fresh_path, lease, read_run, try_write_eval
from jaxtrain.workdir.lease import Holder
from jaxtrain.workdir.staged import Staged

EVENT = '{"step": 1, "time": 5.0, "split": "train"}\n'


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serve() as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment.items():
            patch.setenv(name, value)
        for name in ("EPATH_USE_TF", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"):
            patch.setenv(name, "false")
        patch.setenv("GCE_METADATA_DETECT_RETRIES", "1")
        yield running
    bucket._bucket.cache_clear()


@pytest.fixture
def run(service: Service, request: pytest.FixtureRequest) -> str:
    """The name of a new run; it lies in gs://bucket."""
    return request.node.name


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute takes three seconds."""
    for name in ("RENEW_SECONDS", "STALE_SECONDS", "LOOK_SECONDS"):
        monkeypatch.setattr(lease, name, getattr(lease, name) / 20)


def elsewhere(service: Service, run: str, pid: int) -> None:
    """Leaves the lease of a process on another machine."""
    holder = dataclasses.replace(Holder.this(), host="far", kernel="other", pid=pid)
    service.write(f"{run}/.lock", json.dumps(dataclasses.asdict(holder)).encode())


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


def test_a_second_run_is_refused(service: Service, run: str, config: Callable[..., Any]) -> None:
    with open_run(f"gs://bucket/{run}", config()) as first:
        began = time.monotonic()
        with (
            pytest.raises(UsageError, match=f"is held by a live run, process {os.getpid()} on "),
            open_run(f"gs://bucket/{run}", config()),
        ):
            pass
        assert time.monotonic() - began < lease.RENEW_SECONDS
        first.check_held()


def test_a_holder_that_ended_here_is_followed_at_once(
    service: Service, run: str, config: Callable[..., Any]
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        began = lease._began(process.pid)
        assert began
        process.kill()
        while lease._began(process.pid):  # it may be waited for only
            time.sleep(0.01)
        gone = dataclasses.replace(Holder.this(), pid=process.pid, began=began)
    assert gone.is_here
    assert gone.is_gone
    service.write(f"{run}/.lock", json.dumps(dataclasses.asdict(gone)).encode())
    with open_run(f"gs://bucket/{run}", config()) as opened:
        opened.check_held()


@pytest.mark.usefixtures("hasty")
def test_a_holder_elsewhere_is_followed_when_it_is_stale(
    service: Service, run: str, config: Callable[..., Any]
) -> None:
    elsewhere(service, run, pid=7)
    said: list[str] = []
    with open_run(f"gs://bucket/{run}", config(), say=said.append) as opened:
        for _ in range(20):
            opened.check_held()
            time.sleep(0.02)
        assert Holder.read(service.read(f"{run}/.lock")).pid == os.getpid()
    (line,) = said
    assert line.startswith(f"workdir gs://bucket/{run} is held by process 7 on far; if that has ")
    assert service.names(run) == ["classes.json", "config.json", "data.json"]


@pytest.mark.usefixtures("hasty")
def test_a_live_holder_elsewhere_is_not_followed(
    service: Service, run: str, config: Callable[..., Any]
) -> None:
    elsewhere(service, run, pid=7)
    renew = threading.Timer(0.4, elsewhere, [service, run], {"pid": 7})
    renew.start()
    with (
        pytest.raises(UsageError, match="is held by a live run, process 7 on far"),
        open_run(f"gs://bucket/{run}", config()),
    ):
        pass
    renew.join()
    assert service.names(run) == [".lock"]


@pytest.mark.usefixtures("hasty")
def test_a_run_that_lost_its_folder_writes_nothing_more(
    service: Service, run: str, config: Callable[..., Any]
) -> None:
    def go_on(opened: Workdir) -> None:
        elsewhere(service, run, pid=7)
        opened.metrics_path.write_text(EVENT)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            opened.check_held()
            time.sleep(0.02)

    with (
        pytest.raises(CheckpointError, match="was taken over by process 7 on far") as caught,
        open_run(f"gs://bucket/{run}", config()) as opened,
    ):
        go_on(opened)
    assert caught.value.status == 5
    assert service.names(run) == [".lock", "classes.json", "config.json", "data.json"]
    assert Holder.read(service.read(f"{run}/.lock")).pid == 7


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
