"""A run that is killed or stopped at any moment ends as if nothing had happened."""

import json
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e.command import (
    Command,
    read_arrays,
    read_metrics,
    read_series,
    result,
    saved_steps,
    steps_of,
)

# Reports, evaluations, checkpoints and epochs all end at different steps.
WORDS = [
    "--config=digits.py",
    "--config.train.batch_size=24",
    "--config.train.steps=400",
    "--config.report.every_steps=7",
    "--config.eval.every_steps=30",
    "--config.checkpoint.every_epochs=0.5",
    "--config.checkpoint.best_metric=accuracy",
    "--config.schedule.name=cosine",
    "--config.schedule.warmup_epochs=2",
    "--workdir=run",
]
STEPS = 400

Ready = Callable[[], bool]


@pytest.fixture(scope="module")
def whole(new_command: Callable[[], Command]) -> Path:
    """The folder of the run that nobody disturbed."""
    command = new_command()
    summary = command.result("train", *WORDS)
    assert summary["step"] == STEPS
    assert 0 < summary["best"]["step"] < STEPS
    return command.folder / "run"


def test_the_undisturbed_run_has_every_step_once(whole: Path) -> None:
    """What the other tests compare with."""
    assert steps_of(whole, "train") == [*range(7, STEPS, 7), STEPS]
    assert steps_of(whole, "test") == [*range(30, STEPS, 30), STEPS]
    accuracies = {
        event["step"]: event["accuracy"]
        for event in read_metrics(whole)
        if event["split"] == "test"
    }
    best = max(accuracies, key=lambda step: (accuracies[step], -step))
    assert json.loads((whole / "result.json").read_text())["best"] == {
        "step": best,
        "metric": "accuracy",
        "value": accuracies[best],
    }
    assert saved_steps(whole) == sorted({best, 375, 396, STEPS})


def last_step(workdir: Path) -> int:
    """The last whole step in metrics.jsonl; 0 before the first."""
    log = workdir / "metrics.jsonl"
    text = log.read_text() if log.exists() else ""
    found = re.findall(r'^\{"step": (\d+)', text, re.MULTILINE)
    return int(found[-1]) if found else 0


def at_step(workdir: Path, step: int) -> Ready:
    """The run has reported `step`."""
    return lambda: last_step(workdir) >= step


def saving(workdir: Path, step: int) -> Ready:
    """After `step`, a checkpoint is being written right now."""

    def ready() -> bool:
        names = (entry.name for entry in (workdir / "checkpoints").iterdir())
        return last_step(workdir) >= step and not all(name.isdigit() for name in names)

    return ready


def saved(workdir: Path, step: int) -> Ready:
    """After `step`, a checkpoint has just got its place."""
    before: set[str] | None = None

    def ready() -> bool:
        nonlocal before
        if last_step(workdir) < step:
            return False
        names = {e.name for e in (workdir / "checkpoints").iterdir() if e.name.isdigit()}
        new = before is not None and not names <= before
        before = names
        return new

    return ready


def restarting(workdir: Path, step: int) -> Ready:
    """Its records are being brought back to the checkpoint that it goes on from."""
    before: set[str] | None = None

    def ready() -> bool:
        nonlocal before
        names = {entry.name for entry in (workdir / "tensorboard").iterdir()}
        before = before or names
        return names != before

    return ready


def wait_for(ready: Ready, process: subprocess.Popen[str]) -> None:
    """Returns as soon as `ready`, while the process lives."""
    deadline = time.monotonic() + 60
    while not ready():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.0005)


def assert_same_run(workdir: Path, whole: Path) -> None:
    """Weights bit for bit, every number, every step once."""
    assert numbers(workdir) == numbers(whole)
    series, expected = read_series(workdir), read_series(whole)
    for tags in (series, expected):
        tags["images_per_second"] = [(step, 0.0) for step, _ in tags["images_per_second"]]
    assert series == expected
    arrays, others = read_arrays(workdir), read_arrays(whole)
    assert list(arrays) == list(others)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name], err_msg=name, strict=True)
    assert saved_steps(workdir) == saved_steps(whole)


def numbers(workdir: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what a clock says."""
    clocks = ("time", "images_per_second")
    return [
        {name: value for name, value in event.items() if name not in clocks}
        for event in read_metrics(workdir)
    ]


def without_seconds(summary: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in summary.items() if name != "seconds"}


@pytest.fixture(scope="module")
def disturbed(
    new_command: Callable[[], Command], whole: Path
) -> Iterator[dict[str, futures.Future[None]]]:
    """Both kinds of disturbed runs, under way at the same time to save some."""
    with futures.ThreadPoolExecutor(2) as pool:
        yield {
            "killed": pool.submit(kill_at_random_moments, new_command(), whole),
            "stopped": pool.submit(stop_and_go_on, new_command(), whole),
        }


def test_kill_at_random_moments(disturbed: dict[str, futures.Future[None]]) -> None:
    disturbed["killed"].result()


def test_stop_and_go_on(disturbed: dict[str, futures.Future[None]]) -> None:
    disturbed["stopped"].result()


def kill_at_random_moments(command: Command, whole: Path) -> None:
    """SIGKILL, and the same command again, until it is done."""
    workdir = command.folder / "run"
    seed = random.randrange(2**32)
    print("the moments of this test come from seed", seed)
    moments = random.Random(seed)
    kinds = [at_step, saving, saved, restarting, at_step, saving, saved]
    starts = [workdir.exists]  # before anything is there but the folder
    for number, kind in enumerate(kinds):
        part = STEPS * 0.8 / len(kinds)
        starts.append(kind(workdir, round(part * (number + moments.random()))))
    went_on = []
    for ready in starts:
        with command.start("train", *WORDS) as process:
            wait_for(ready, process)
            time.sleep(moments.choice([0, 0.03 * moments.random()]))
            process.kill()
            _, said = process.communicate()
        assert process.returncode == -signal.SIGKILL
        went_on += re.findall(r"going on from step (\d+)", said)
    last = command("train", *WORDS)
    expected = json.loads((whole / "result.json").read_text())
    assert without_seconds(result(last)) == without_seconds(expected)
    assert len(set(went_on)) >= 3
    assert f"to {STEPS}" in last.stderr
    assert_same_run(workdir, whole)


def stop_and_go_on(command: Command, whole: Path) -> None:
    """SIGTERM, SIGINT, and the same command again each time."""
    workdir = command.folder / "run"
    steps = [0]
    for number, first in ((signal.SIGTERM, 91), (signal.SIGINT, 252)):
        with command.start("train", *WORDS) as process:
            wait_for(at_step(workdir, first), process)
            process.send_signal(number)
            out, said = process.communicate(timeout=60)
        assert (process.returncode, out) == (75, "")
        line = said.splitlines()[-1]
        stopped = re.fullmatch(
            r"jaxtrain: stopped after step (\d+) of 400, which is saved; "
            "go on with: jaxtrain train --workdir=run",
            line,
        )
        assert stopped is not None, said
        assert f"train    going on from step {steps[-1]} to 400" in said or steps[-1] == 0
        steps.append(int(stopped[1]))
        assert first <= steps[-1] < STEPS
        assert saved_steps(workdir)[-1] == steps[-1]
        assert not (workdir / "result.json").exists()
    # The examples may lie elsewhere by now: that changes nothing either.
    assert command.result("train", *WORDS, "--config.data.cache=memory")["step"] == STEPS
    assert_same_run(workdir, whole)


def test_a_second_signal_ends_it_at_once(command: Command) -> None:
    with command.start("train", *WORDS, cached=False) as process:
        assert process.stderr is not None
        while process.stderr.readline() != "compiling\n":
            assert process.poll() is None
        while process.poll() is None:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        out, said = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in said
    assert not (command.folder / "run" / "result.json").exists()
