"""Runs of several processes: the numbers of one, and an end for all when one ends."""

import re
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from e2e.command import Command, error, read_arrays, read_metrics, saved_steps, steps_of
from e2e.digits import first_digits, write_split
from e2e.pod import Process, ended, pod_result, started, wait_until

from jaxtrain import checkpoint

WORDS = [
    "--config=digits.py",
    "--config.data.augment=pad_crop(2)",
    "--config.eval.batch_size=30",
    "--config.eval.every_steps=10",
    "--config.checkpoint.every_steps=10",
]
LONG = [
    "--config=digits.py",
    "--config.train.steps=1000000",
    "--config.report.every_steps=10",
    "--config.eval.every_steps=0",
    "--config.checkpoint.every_steps=50",
    "--config.parallel.peer_timeout_seconds=5",
    "--workdir=long",
]


@pytest.fixture
def command(new_command: Callable[..., Command]) -> Command:
    return new_command(quickly=True)


@pytest.fixture(scope="module")
def alone(new_command: Callable[..., Command]) -> Path:
    """The run of one process with one device, twice as long as the others' first start."""
    command = new_command(quickly=True)
    command.result("train", *WORDS, "--config.train.steps=40", "--workdir=run")
    return command.folder / "run"


def assert_close(workdir: Path, other: Path) -> None:
    """The two runs' numbers agree but for rounding."""
    ours, theirs = (
        {(event["step"], event["split"]): event for event in read_metrics(folder)}
        for folder in (workdir, other)
    )
    assert ours.keys() <= theirs.keys()
    for where, event in ours.items():
        assert event["loss"] == pytest.approx(theirs[where]["loss"], rel=1e-5)
        assert event["accuracy"] == pytest.approx(theirs[where]["accuracy"], abs=1 / 200)
        assert event.get("count") == theirs[where].get("count")


def test_four_processes_are_one_and_go_on_as_two_and_as_one(command: Command, alone: Path) -> None:
    workdir = command.folder / "run"
    words = [*WORDS, "--workdir=run"]
    four = pod_result(command, 4, "train", *words)
    assert (four["step"], four["eval"]["count"]) == (20, 200)
    assert_close(workdir, alone)
    words += ["--extend"]
    more = ["--config.parallel.mesh=fsdp=-1", "--config.parallel.rules=fsdp"]
    two = pod_result(command, 2, "train", *words, *more, "--config.train.steps=30", devices=2)
    assert two["step"] == 30
    scored = pod_result(command, 2, "eval", "--workdir=run", "--hardest=5", "--by=gradient")
    table = Path(scored["hardest"]["table"]).name
    of_two = (workdir / "eval" / table).read_text()
    command.result("eval", "--workdir=run", "--hardest=5", "--by=gradient")
    of_one = (workdir / "eval" / table).read_text()
    for two_said, one_said in zip(of_two.splitlines()[1:], of_one.splitlines()[1:], strict=True):
        ours, theirs = two_said.split(","), one_said.split(",")
        assert ours[:4] == theirs[:4]
        np.testing.assert_allclose(np.float32(ours[4:]), np.float32(theirs[4:]), rtol=1e-5)
    assert scored["eval"]["accuracy"] == two["eval"]["accuracy"]
    assert scored["eval"]["loss"] == pytest.approx(two["eval"]["loss"], rel=1e-6)
    command.result("train", *words, "--config.train.steps=40")
    assert steps_of(workdir, "train") == list(range(5, 41, 5))
    assert steps_of(workdir, "test") == [10, 20, 30, 40]
    assert saved_steps(workdir) == [20, 30, 40]
    assert_close(workdir, alone)
    ours, theirs = read_arrays(workdir), read_arrays(alone)
    for name, array in theirs.items():
        np.testing.assert_allclose(ours[name], array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("devices", "layout"),
    [
        (2, ["--config.parallel.mode=pmap"]),
        (2, ["--config.parallel.mesh=fsdp=-1", "--config.parallel.rules=fsdp"]),
        (1, ["--config.parallel.mesh=data=1,model=2", "--config.parallel.rules=tensor"]),
    ],
    ids=["pmap", "fsdp", "model"],
)
def test_each_process_reads_its_own_rows(
    command: Command, alone: Path, devices: int, layout: list[str]
) -> None:
    """Examples in the host's memory, over two processes; of `model` each needs every row."""
    more = ["--config.data.cache=memory", *layout, "--workdir=run"]
    pod_result(command, 2, "train", *WORDS, *more, devices=devices)
    assert_close(command.folder / "run", alone)


def test_seven_examples_on_four_processes_end_exactly(command: Command) -> None:
    images, labels = first_digits("train", 7)
    for split in ("train", "t10k"):
        write_split(command.folder / "seven", split, images, labels)
    words = [
        "--config=digits.py",
        "--config.data.path=seven",
        "--config.data.num_classes=10",
        "--config.train.steps=None",
        "--config.train.epochs=3",
        "--config.train.batch_size=4",
        "--config.eval.batch_size=4",
    ]
    pods = {n: pod_result(command, n, "train", *words, f"--workdir={n}") for n in (1, 4)}
    for done in pods.values():
        assert (done["step"], done["eval"]["count"]) == (6, 7)
    assert_close(command.folder / "4", command.folder / "1")
    assert steps_of(command.folder / "4", "test") == [2, 4, 6]


@pytest.mark.parametrize(("index", "number"), [(0, signal.SIGTERM), (1, signal.SIGINT)])
def test_a_signal_to_one_stops_all_on_one_saved_step(
    command: Command, index: int, number: int
) -> None:
    log = command.folder / "long" / "metrics.jsonl"
    with started(command, 2, "train", *LONG) as processes:
        wait_until(lambda: log.exists() and log.stat().st_size > 500, processes)
        processes[index].send_signal(number)
        first, other = ended(processes)
    assert (first.returncode, other.returncode) == (75, 75), first.stderr + other.stderr
    step = saved_steps(command.folder / "long")[-1]
    assert f"jaxtrain: stopped after step {step} of 1000000, which is saved" in first.stderr
    assert first.stdout == other.stdout == ""
    words = ["--workdir=long", "--extend", f"--config.train.steps={step + 20}"]
    refused = command("train", *words)
    assert "--extend only allows a larger" in error(refused, 2)


def read_until(process: Process, begin: str) -> None:
    """Reads a process's stderr to the first line that begins so."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith(begin):
            return
    pytest.fail(f"no {begin!r} in {lines}")


def test_a_signal_in_the_first_compilation_acts_after_it(
    new_command: Callable[..., Command],
) -> None:
    """On a step that is saved, since none was."""
    command = new_command()
    with started(command, 2, "train", *LONG, cached=False) as processes:
        read_until(processes[0], "model ")
        processes[1].send_signal(signal.SIGTERM)
        first, other = ended(processes)
    assert (first.returncode, other.returncode) == (75, 75), first.stderr + other.stderr
    (step,) = saved_steps(command.folder / "long")
    assert step <= 50  # four calls of ten steps are sent ahead
    assert f"jaxtrain: stopped after step {step} of 1000000, which is saved" in first.stderr


def test_a_second_signal_ends_all_at_once(new_command: Callable[..., Command]) -> None:
    """It comes in a long compilation, and nobody waits for it to end."""
    command = new_command()
    words = [*LONG, "--config.model.name=resnet20", "--config.parallel.peer_timeout_seconds=100"]
    with started(command, 2, "train", *words, cached=False) as processes:
        read_until(processes[0], "model ")
        for said in ("stopping soon", ""):
            processes[0].send_signal(signal.SIGINT)
            if said:
                read_until(processes[0], said)
        first, other = ended(processes)
    assert (first.returncode, other.returncode) == (130, 130), first.stderr + other.stderr
    assert "process 0: left at a second signal, without saving" in other.stderr
    assert not (command.folder / "long" / "checkpoints").exists()


def test_a_stop_in_an_evaluation_evaluates_on_resume(command: Command) -> None:
    """The evaluation takes a second; the signal comes in it."""
    words = [*LONG[:2], "--config.report.every_steps=10", "--config.eval.every_steps=20"]
    words += ["--config.eval.batch_size=1", "--config.train.steps=40", "--workdir=run"]
    workdir = command.folder / "run"
    with started(command, 2, "train", *words, "--config.checkpoint.best_metric=loss") as processes:
        wait_until(
            lambda: (workdir / "metrics.jsonl").exists() and steps_of(workdir, "train") == [10, 20],
            processes,
        )
        processes[1].send_signal(signal.SIGTERM)
        first, other = ended(processes)
    assert (first.returncode, other.returncode) == (75, 75), first.stderr + other.stderr
    assert saved_steps(workdir) == [20]
    assert steps_of(workdir, "test") == []
    more = ["--config.checkpoint.best_metric=loss"]
    done = pod_result(command, 2, "train", *words, *more)
    assert done["step"] == 40
    # The step that was saved without its evaluation knows of it now.
    meta = checkpoint.read_meta(workdir / "checkpoints", 20)
    assert (meta["best"]["step"], meta["record"]["owes_evaluation"]) == (20, False)
    assert steps_of(workdir, "test") == [20, 40]
    assert steps_of(workdir, "train") == [10, 20, 30, 40]


def test_after_the_loss_of_a_process_the_same_command_goes_on(
    command: Command, alone: Path
) -> None:
    """It is lost in the second evaluation, which takes a second; the numbers are undisturbed."""
    workdir = command.folder / "run"
    words = [*WORDS, "--config.eval.batch_size=1", "--config.train.steps=40", "--workdir=run"]

    def is_half_done() -> bool:
        log, saved = workdir / "metrics.jsonl", checkpoint.list_steps(workdir / "checkpoints")
        return 10 in saved and log.exists() and 20 in steps_of(workdir, "train")

    with started(command, 2, "train", *words) as processes:
        wait_until(is_half_done, processes)
        processes[1].kill()
        first, other = ended(processes)
    assert "process 1 of 2 was lost" in error(first, 7)
    assert (other.returncode, (workdir / "result.json").exists()) == (-signal.SIGKILL, False)
    assert pod_result(command, 2, "train", *words)["step"] == 40
    assert steps_of(workdir, "train") == list(range(5, 41, 5))
    assert steps_of(workdir, "test") == [10, 20, 30, 40]
    assert_close(workdir, alone)


def test_a_process_that_falls_silent_ends_the_other(command: Command) -> None:
    log = command.folder / "long" / "metrics.jsonl"
    with started(command, 2, "train", *LONG) as processes:
        wait_until(lambda: log.exists() and log.stat().st_size > 500, processes)
        processes[1].send_signal(signal.SIGSTOP)
        (first,) = ended(processes[:1])
        processes[1].kill()
    message = error(first, 7)
    assert "process 1 of 2 was lost" in message
    assert "\n" not in message
    assert "F0000" not in first.stderr


def test_a_process_that_never_starts_is_named(command: Command) -> None:
    words = [*LONG, "--config.parallel.peer_timeout_seconds=2"]
    with started(command, 3, "train", *words, absent=[1, 2]) as processes:
        (first,) = ended(processes)
    assert error(first, 7).startswith("processes 1 and 2 of 3 never started: nothing heard of ")
    assert not (command.folder / "long").exists()


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def test_a_sigterm_before_the_run_is_set_up_asks_for_another_start(command: Command) -> None:
    """The other process never comes, so that this one waits."""
    with started(command, 2, "train", *LONG, absent=[1]) as processes:
        wait_until(lambda: catches(processes[0].pid, signal.SIGTERM), processes)
        processes[0].send_signal(signal.SIGTERM)
        (first,) = ended(processes)
    assert (first.returncode, first.stdout) == (75, "")
    assert first.stderr.endswith("run the same command again\n")


def test_processes_of_different_runs_are_refused(command: Command) -> None:
    own = {1: ["--config.train.batch_size=20"]}
    with started(command, 2, "train", *WORDS, "--workdir=run", own=own) as processes:
        first, other = ended(processes)
    for each in (first, other):
        message = error(each, 2)
        assert "config.train.batch_size is '20' in process 1, but '40' in process 0" in message
    assert not (command.folder / "run").exists()
