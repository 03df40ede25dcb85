"""What a run's folder allows, and what it refuses."""

import json
import re
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e.command import (
    Command,
    read_arrays,
    read_metrics,
    refusal,
    result,
    saved_steps,
    snapshot,
    steps_of,
    together,
)

from jaxtrain.config import load_json

WORDS = ["--config=digits.py", "--config.checkpoint.every_steps=8"]


@pytest.fixture(scope="module")
def command(new_command: Callable[[], Command]) -> Command:
    return new_command()


@pytest.fixture(scope="module")
def finished(command: Command) -> dict[str, Any]:
    """The result of the run of 20 steps in its default folder."""
    return command.result("train", *WORDS)


@pytest.fixture(scope="module")
def workdir(command: Command, finished: dict[str, Any]) -> Path:
    (folder,) = (command.folder / "runs").iterdir()
    return folder


@pytest.fixture
def copy(workdir: Path, command: Command, request: pytest.FixtureRequest) -> Path:
    """A copy of the finished run that a test may change."""
    return shutil.copytree(workdir, command.folder / request.node.name)


def assert_same_weights(a: Path, b: Path) -> None:
    arrays, others = read_arrays(a), read_arrays(b)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name], err_msg=name, strict=True)


def test_the_same_command_finds_a_finished_run(
    command: Command, finished: dict[str, Any], workdir: Path
) -> None:
    before = snapshot(command.folder)
    again = command("train", *WORDS)
    assert result(again) == finished
    assert f"workdir  {workdir.relative_to(command.folder)}\n" in again.stderr
    assert "this run is finished; --extend makes it longer, --fresh starts another" in again.stderr
    assert "compiling" not in again.stderr
    assert snapshot(command.folder) == before


CHANGES = [
    (
        ["--config.optimizer.learning_rate=0.5", "--config.model.mlp.hidden_sizes=16,16"],
        r"another config: model\.mlp\.hidden_sizes: \(32,\) -> \(16, 16\); "
        r"optimizer\.learning_rate: 0\.001 -> 0\.5; .*--fresh",
    ),
    (["--config.train.steps=30"], r"train\.steps: 20 -> 30; make it longer with --extend"),
    (
        ["--config.train.steps=10", "--extend"],
        r"train\.steps: 20 -> 10; --extend only allows a larger",
    ),
    (
        ["--config.train.steps=30", "--config.seed=1", "--extend"],
        r"seed: 0 -> 1; train\.steps: 20 -> 30; --extend only allows a larger",
    ),
]


def test_a_changed_config_is_refused(command: Command, workdir: Path) -> None:
    """Each in a copy of the run, so that each is the first that has its folder."""
    copies = [command.folder / "changed" / str(number) for number in range(len(CHANGES))]
    for folder in copies:
        shutil.copytree(workdir, folder)
    before = [snapshot(folder) for folder in copies]
    done = command.in_turn(
        *(
            ["train", *WORDS, *words, f"--workdir={folder}"]
            for folder, (words, _) in zip(copies, CHANGES, strict=True)
        )
    )
    for message, (_, expected) in zip(map(refusal, done), CHANGES, strict=True):
        assert re.search(expected, message), message
    assert [snapshot(folder) for folder in copies] == before


def test_a_foreign_folder_is_refused(command: Command) -> None:
    (command.folder / "photos").mkdir()
    (command.folder / "photos" / "cat.jpg").write_bytes(b"cat")
    before = sorted(command.folder.rglob("*"))
    said = command.refused("train", *WORDS, "--workdir=photos")
    assert "workdir photos is not the folder of a run: it holds cat.jpg" in said
    assert sorted(command.folder.rglob("*")) == before


def test_fresh_starts_the_same_run_beside(
    command: Command, finished: dict[str, Any], workdir: Path
) -> None:
    before = snapshot(workdir)
    again = command.result("train", *WORDS, "--fresh")
    assert snapshot(workdir) == before
    beside = workdir.with_name(f"{workdir.name}-2")
    for key in ("train", "eval"):
        assert again[key] == finished[key]
    assert_same_weights(beside, workdir)


def test_extend_goes_on_as_a_longer_run_would(command: Command, copy: Path) -> None:
    """The rate is constant, so that the longer run is the same up to step 20; keys that are free
    change with it."""
    longer = [*WORDS, "--config.train.steps=40"]
    free = ["checkpoint.keep=9", "eval.batch_size=77", "eval.every_steps=5"]
    free = [f"--config.{key}" for key in free]
    extended, whole = together(
        partial(command, "train", *longer, *free, "--extend", f"--workdir={copy}"),
        partial(command, "train", *longer, "--workdir=whole"),
    )
    assert "going on from step 20 to 40" in extended.stderr
    assert "learning rate of step 21: 0.001 before, 0.001 now" in extended.stderr
    assert result(extended)["step"] == result(whole)["step"] == 40
    assert result(extended)["train"] == result(whole)["train"]
    assert saved_steps(copy) == [8, 16, 20, 24, 32, 40]
    assert steps_of(copy, "train") == list(range(5, 41, 5))
    assert steps_of(copy, "test") == list(range(20, 41, 5))
    assert_same_weights(copy, command.folder / "whole")
    config = load_json(copy / "config.json")
    assert (config.train.steps, config.checkpoint.keep, config.eval.batch_size) == (40, 9, 77)


def test_a_workdir_alone_goes_on(
    command: Command, finished: dict[str, Any], workdir: Path, copy: Path
) -> None:
    """From step 16, as if the run had been killed before its end."""
    (copy / "result.json").unlink()
    shutil.rmtree(copy / "checkpoints" / "20")
    done = command("train", f"--workdir={copy}")
    assert "going on from step 16 to 20" in done.stderr
    assert result(done)["eval"] == finished["eval"]
    assert steps_of(copy, "train") == [5, 10, 15, 20]
    assert_same_weights(copy, workdir)


def test_a_second_live_run_is_refused(command: Command) -> None:
    words = [*WORDS, "--config.train.steps=1000000", "--workdir=live"]
    live = command.folder / "live"
    with command.start("train", *words) as first:
        while not (live / "metrics.jsonl").exists():
            assert first.poll() is None
            time.sleep(0.01)
        said = command.refused("train", *words)
        assert f"workdir live is held by a live run, process {first.pid} on " in said
        before = len(read_metrics(live))
        deadline = time.monotonic() + 10
        while len(read_metrics(live)) <= before:  # the first run goes on
            assert time.monotonic() < deadline
        assert first.poll() is None


def test_eval_prints_where_it_cannot_write(
    command: Command, finished: dict[str, Any], copy: Path
) -> None:
    """Root may write anywhere, so a file is in the place of the folder."""
    (copy / "eval").write_text("in the way")
    done = command("eval", f"--workdir={copy}")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert json.loads(done.stdout)["eval"] == finished["eval"]
    assert f"warning: the result is not kept in {copy / 'eval'}" in done.stderr
    assert (copy / "eval").read_text() == "in the way"


def test_eval_takes_a_checkpoint_by_step_and_by_path(
    command: Command, finished: dict[str, Any], workdir: Path
) -> None:
    path = f"--checkpoint={workdir / 'checkpoints' / '8'}"
    words = ["eval", f"--workdir={workdir}"]
    done = command.in_turn(
        [*words, "--checkpoint=8"],
        [*words, path, "--config.eval.batch_size=7"],
        [*words, "--checkpoint=last"],
    )
    by_step, by_path, last = map(result, done)
    assert by_step["step"] == by_path["step"] == 8
    assert by_step["eval"]["accuracy"] == by_path["eval"]["accuracy"]
    assert by_step["eval"]["loss"] == pytest.approx(by_path["eval"]["loss"], rel=1e-7)
    assert (last["step"], last["eval"]) == (20, finished["eval"])
    assert last["eval"]["loss"] < by_step["eval"]["loss"]
    said = command.refused("eval", f"--workdir={workdir}", "--checkpoint=9")
    assert re.search(r"--checkpoint=9 is not in .*: the steps are 8, 16, 20", said)
