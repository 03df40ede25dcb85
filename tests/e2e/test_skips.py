"""A run in which some updates are not finite, and are skipped."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from e2e.command import Command, error, read_arrays, read_metrics, saved_steps

MODULE = """
import flax.linen as nn

class Squaring(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(x + 0.0 * (x * x))
"""
RECIPE = """
from jaxtrain.config import base_config

def get_config():
    config = base_config()
    config.data.source = "arrays"
    config.data.path = "numbers.npz"
    config.model.name = "squaring:Squaring"
    config.train.batch_size = 16
    config.train.steps = 24
    config.report.every_steps = 4
    config.checkpoint.every_steps = 3
    config.optimizer.skip_nonfinite = 2
    return config
"""
EXAMPLES = 96
# Finite, but its square is not; it is in one batch of each epoch of 6.
TOO_LARGE = 1e30


@pytest.fixture(scope="module")
def command(new_command: Callable[[], Command]) -> Command:
    """A command beside the data."""
    command = new_command()
    (command.folder / "numbers.py").write_text(RECIPE)
    (command.folder / "squaring.py").write_text(MODULE)
    random = np.random.RandomState(0)
    labels = random.randint(0, 2, EXAMPLES + 20)
    features = np.float32(random.randn(EXAMPLES + 20, 5) + labels[:, None])
    features[7] = TOO_LARGE * np.sign(features[7])
    np.savez(
        command.folder / "numbers.npz",
        x_train=features[:EXAMPLES],
        y_train=labels[:EXAMPLES],
        x_test=features[EXAMPLES:],
        y_test=labels[EXAMPLES:],
    )
    return command


def same_weights(one: Path, other: Path, step: int) -> bool:
    mine, theirs = read_arrays(one, step), read_arrays(other, step)
    return all(np.array_equal(mine[name], theirs[name]) for name in mine | theirs)


def test_a_run_goes_on_past_them_and_says_how_many(command: Command) -> None:
    whole = command("train", "--config=numbers.py", "--workdir=whole")
    assert whole.returncode == 0
    assert "skipped  1 update up to step" in whole.stderr
    folder = command.folder / "whole"
    trained = [event for event in read_metrics(folder) if event["split"] == "train"]
    assert sum(event["skipped"] for event in trained) == 4
    assert {event["skipped"] for event in trained} <= {0, 1, 2}
    assert all(np.isfinite(event["loss"]) for event in trained)
    # Stopped in the middle of an interval, and gone on with.
    command.result("train", "--config=numbers.py", "--workdir=parts", "--config.train.steps=11")
    extended = command.result(
        "train", "--config=numbers.py", "--workdir=parts", "--config.train.steps=24", "--extend"
    )
    assert extended["skipped"] == 4
    assert same_weights(folder, command.folder / "parts", 24)
    again = [event for event in read_metrics(command.folder / "parts") if event["step"] == 24]
    assert again[0]["loss"] == trained[-1]["loss"]
    assert again[0]["skipped"] == trained[-1]["skipped"]


def test_too_many_in_a_row_end_it(command: Command) -> None:
    """All examples are in each batch, and so is the one."""
    words = ["--config=numbers.py", f"--config.train.batch_size={EXAMPLES}", "--workdir=bad"]
    message = error(command("train", *words), status=4)
    assert message.startswith(
        "the loss or a gradient is NaN or infinite at step 3, after 2 skipped in a row; "
    )
    assert saved_steps(command.folder / "bad") == []
