"""Who has a folder in a bucket, and how long."""

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from bucket_service import Service
from helpers import open_run

from jaxtrain.errors import CheckpointError, UsageError
from jaxtrain.files import bucket
from jaxtrain.workdir import Workdir, lease
from jaxtrain.workdir.lease import Holder

EVENT = '{"step": 1, "time": 5.0, "split": "train"}\n'


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute takes three seconds."""
    for name in ("RENEW_SECONDS", "STALE_SECONDS", "LOOK_SECONDS", "DOUBT_SECONDS"):
        monkeypatch.setattr(lease, name, getattr(lease, name) / 20)


def elsewhere(service: Service, run: str, pid: int) -> None:
    """Leaves the lease of a process on another machine."""
    holder = dataclasses.replace(Holder.this(), host="far", kernel="other", pid=pid)
    service.write(f"{run}/.lock", json.dumps(dataclasses.asdict(holder)).encode())


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


@pytest.fixture
def stalled(hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that renews the lease stands still, as does all of a machine that is suspended."""
    monkeypatch.setattr(lease, "RENEW_SECONDS", 1000)


def pass_by(monkeypatch: pytest.MonkeyPatch, clock: str) -> None:
    """Lets three (hasty) minutes pass, by one of the clocks."""
    now = getattr(time, clock)
    monkeypatch.setattr(lease.time, clock, lambda: now() + 9)


@pytest.mark.usefixtures("stalled")
@pytest.mark.parametrize("clock", ["monotonic", "time"])
def test_a_holder_that_stood_still_finds_that_it_lost_its_folder(
    service: Service, config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    run = f"stood-still-{clock}"

    def stand_still(opened: Workdir) -> None:
        elsewhere(service, run, pid=7)
        opened.check_held()  # within its minute
        pass_by(monkeypatch, clock)
        opened.publish()

    with (
        pytest.raises(CheckpointError, match="was taken over by process 7 on far"),
        open_run(f"gs://bucket/{run}", config()) as opened,
    ):
        stand_still(opened)
    assert Holder.read(service.read(f"{run}/.lock")).pid == 7


@pytest.mark.usefixtures("stalled")
def test_a_holder_that_stood_still_keeps_what_nobody_took(
    service: Service, run: str, config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_run(f"gs://bucket/{run}", config()) as opened:
        assert opened.lease is not None
        before = opened.lease._stored.generation
        opened.check_held()
        assert opened.lease._stored.generation == before
        with monkeypatch.context() as patch:
            pass_by(patch, "monotonic")
            opened.check_held()
        assert opened.lease._stored.generation > before


@pytest.mark.usefixtures("stalled")
def test_a_holder_that_is_cut_off_goes_on_within_a_while_only(
    service: Service, run: str, config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "WRITE_SECONDS", 0.5)
    write, tries = bucket.write, 0

    def fail_twice(*words: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise ConnectionError
        return write(*words)

    def fail(*_: Any) -> Any:
        raise ConnectionError("cut off")

    with open_run(f"gs://bucket/{run}", config()) as opened:
        with monkeypatch.context() as patch:
            pass_by(patch, "monotonic")
            patch.setattr(bucket, "write", fail_twice)
            opened.check_held()
        assert tries == 3
        words = r"not be reached for \d+ s, .* over: ConnectionError: cut off; run the same command"
        with monkeypatch.context() as patch:
            patch.setattr(bucket, "write", fail)
            pass_by(patch, "time")
            with pytest.raises(CheckpointError, match=words):
                opened.check_held()
