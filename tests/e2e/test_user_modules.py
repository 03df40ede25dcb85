"""A person's own network, from a file in the current folder."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from e2e.command import Command, read_arrays, together

LINEN = """
import flax.linen as nn

class Net(nn.Module):
    num_classes: int
    width: int = 8

    @nn.compact
    def __call__(self, image, train):
        hidden = nn.Dense(self.width)(image.reshape(len(image), -1))
        hidden = nn.BatchNorm(use_running_average=not train)(hidden)
        hidden = nn.Dropout(0.5, deterministic=not train)(nn.relu(hidden))
        return nn.Dense(self.num_classes)(hidden)
"""

NNX = """
import jax
from flax import nnx

class Net(nnx.Module):
    def __init__(self, num_classes, width=8, *, rngs):
        self.hidden = nnx.Linear(784, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(width, num_classes, rngs=rngs)

    def __call__(self, image, train):
        hidden = self.hidden(image.reshape(len(image), -1))
        hidden = jax.nn.relu(self.norm(hidden, use_running_average=not train))
        return self.head(self.dropout(hidden, deterministic=not train))
"""

WORDS = [
    "--config=digits.py",
    "--config.model.name=my.nets:Net",
    "--config.model.args.width=16",
]


@pytest.fixture
def command(new_command: Callable[..., Command]) -> Command:
    return new_command(quickly=True)


@pytest.mark.parametrize("source", [LINEN, NNX], ids=["linen", "nnx"])
def test_it_trains_goes_on_and_is_evaluated(command: Command, source: str) -> None:
    """The run of 10 and 10 more steps is the one of 20, whatever else is in the file."""
    package = command.folder / "my"
    package.mkdir()
    (package / "nets.py").write_text(source)
    # The current folder comes last: this does not take the place of the library's.
    (command.folder / "optax.py").write_text("raise ImportError('not the library')")
    short = ["--config.train.steps=10", "--workdir=run"]
    whole, _ = together(
        partial(command.result, "train", *WORDS),
        partial(command.result, "train", *WORDS, *short),
    )
    assert whole["eval"]["accuracy"] > 0.2
    (package / "nets.py").write_text(f"'''What my nets are.'''\n{source}\nOTHER = 1\n")
    extended = command.result("train", *WORDS, "--extend", "--workdir=run")
    (folder,) = (command.folder / "runs").iterdir()
    assert extended["eval"] == whole["eval"]
    arrays, others = read_arrays(command.folder / "run"), read_arrays(folder)
    assert {array.shape for array in arrays.values()} >= {(784, 16), (16, 10), (16,)}
    assert sorted(arrays) == sorted(others)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name], err_msg=name, strict=True)
    assert command.result("eval", "--workdir=run")["eval"] == whole["eval"]


def test_a_module_that_is_not_there(command: Command) -> None:
    said = command.refused("train", *WORDS)
    assert "model.name='my.nets:Net': my.nets cannot be imported" in said
    assert not (command.folder / "runs").exists()
