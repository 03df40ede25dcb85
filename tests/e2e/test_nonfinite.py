"""A run whose loss becomes infinite or NaN."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from e2e.command import Command, error, read_arrays, read_metrics, saved_steps, steps_of

# The rate is sane for 25 steps, one epoch, and absurd from then on.
WORDS = [
    "--config=digits.py",
    "--config.train.steps=75",
    "--config.optimizer.name=sgd",
    "--config.optimizer.learning_rate=0.1",
    "--config.schedule.name=step",
    "--config.schedule.boundaries=1",
    "--config.schedule.decay_rate=1e35",
    "--config.checkpoint.every_steps=10",
    "--config.eval.every_steps=10",
    "--config.checkpoint.best_metric=accuracy",
    "--workdir=run",
]


@pytest.fixture
def command(new_command: Callable[..., Command]) -> Command:
    return new_command(quickly=True)


def test_the_last_good_checkpoint_is_kept(command: Command) -> None:
    workdir = command.folder / "run"
    messages = []
    for _ in range(2):  # the same again when it is tried again
        messages.append(error(command("train", *WORDS), status=4))
        assert not (workdir / "result.json").exists()
        assert saved_steps(workdir) == [10, 20]
    assert messages[0] == messages[1]
    assert "the loss is NaN or infinite at step 2" in messages[0]
    assert "the last checkpoint is step 20" in messages[0]
    assert "optimizer.learning_rate=0.1" in messages[0]
    for step in saved_steps(workdir):
        assert all(np.isfinite(array).all() for array in read_arrays(workdir, step).values())
    assert steps_of(workdir, "test") == [10, 20]
    for event in read_metrics(workdir):
        assert event["step"] <= 25
        values = [value for name, value in event.items() if name not in ("split", "time")]
        assert all(math.isfinite(value) for value in values)
    best = command.result("eval", "--workdir=run", "--checkpoint=best")
    last = command.result("eval", "--workdir=run")
    assert last["step"] == 20
    tested = {event["step"]: event for event in read_metrics(workdir) if event["split"] == "test"}
    for found in (best, last):
        assert found["eval"]["accuracy"] == tested[found["step"]]["accuracy"]
    assert best["eval"]["accuracy"] == max(event["accuracy"] for event in tested.values())


def test_parameters_that_overflow_are_not_saved(command: Command) -> None:
    """The loss of step 1 is that of the initial weights: finite."""
    words = ["--config.optimizer.learning_rate=1e30", "--config.optimizer.weight_decay=1e30"]
    every = ["--config.checkpoint.every_steps=1", "--config.report.every_steps=1"]
    message = error(command("train", *WORDS, *words, *every), status=4)
    assert message.startswith("a parameter is NaN or infinite after step 1; this step is not saved")
    workdir = command.folder / "run"
    assert saved_steps(workdir) == []
    assert steps_of(workdir, "train") == [1]
    assert not (workdir / "result.json").exists()
