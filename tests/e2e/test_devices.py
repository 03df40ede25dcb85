"""The same run on one device and on eight."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from e2e.command import Command, read_metrics, saved_steps, steps_of, together

WORDS = ["--config=digits.py", "--config.eval.batch_size=30", "--config.eval.every_steps=10"]
MORE = ["--extend", "--config.train.steps=40"]


@pytest.fixture(scope="module")
def command(new_command: Callable[[], Command]) -> Command:
    return new_command()


@pytest.fixture(scope="module")
def trained(command: Command) -> list[dict[str, Any]]:
    """The results of `runs/1` on one device and `runs/8` on eight."""
    return together(
        *(
            partial(command.result, "train", *WORDS, f"--workdir=runs/{n}", devices=n)
            for n in (1, 8)
        )
    )


def folders(command: Command) -> list[Path]:
    return [command.folder / "runs" / name for name in ("1", "8")]


def assert_close(command: Command) -> None:
    """The two runs' numbers agree but for rounding."""
    one, eight = map(read_metrics, folders(command))
    assert len(one) == len(eight)
    for a, b in zip(one, eight, strict=True):
        assert (a["step"], a["split"]) == (b["step"], b["split"])
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
        if a["split"] == "train":
            assert a["learning_rate"] == b["learning_rate"]
            assert a["accuracy"] == pytest.approx(b["accuracy"], abs=1 / 200)  # an example
        else:
            assert a["count"] == b["count"] == 200
            assert a["accuracy"] == pytest.approx(b["accuracy"], abs=1 / 200)


@pytest.mark.usefixtures("trained")
def test_training_is_the_same_but_for_rounding(command: Command) -> None:
    assert_close(command)


def test_evaluation_is_the_same_on_any_devices(
    command: Command, trained: list[dict[str, Any]]
) -> None:
    """Each run's weights, on the other number of devices."""
    swapped = together(
        *(partial(command.result, "eval", f"--workdir=runs/{9 - n}", devices=n) for n in (8, 1))
    )
    for there, here in zip(trained, swapped, strict=True):
        assert here["eval"]["count"] == there["eval"]["count"] == 200
        assert here["eval"]["accuracy"] == there["eval"]["accuracy"]
        assert here["eval"]["loss"] == pytest.approx(there["eval"]["loss"], rel=1e-7)


@pytest.mark.usefixtures("trained")
def test_a_run_goes_on_with_another_number_of_devices(command: Command) -> None:
    words = [*WORDS, *MORE, "--config.checkpoint.every_epochs=0"]
    together(
        *(
            partial(command.result, "train", *words, f"--workdir=runs/{9 - n}", devices=n)
            for n in (8, 1)
        )
    )
    for workdir in folders(command):
        assert steps_of(workdir, "train") == list(range(5, 41, 5))
        assert steps_of(workdir, "test") == [10, 20, 30, 40]
        assert saved_steps(workdir) == [20, 40]
    assert_close(command)


def test_a_batch_that_does_not_divide_is_refused(command: Command) -> None:
    before = sorted(command.folder.rglob("*"))
    words = [*WORDS, "--config.train.batch_size=36", "--workdir=runs/36"]
    message = command.refused("train", *words, devices=8)
    assert message == "train.batch_size=36 does not divide over 8 devices; try 32 or 40"
    assert sorted(command.folder.rglob("*")) == before
