"""Models as functions that any runtime may run: scored on a split, and compared with each other."""

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import jax
import numpy as np
from numpy.typing import NDArray

from jaxtrain import data
from jaxtrain.errors import NonFiniteError
from jaxtrain.evaluation import Results, joined
from jaxtrain.tasks import Outputs, Task

# Examples that are compared at a time.
_BLOCK: Final = 256


def flip_averaged(logits: Outputs) -> Outputs:
    """The mean of the logits of each image and of its mirror image, as of `eval_step`."""

    def averaged(images: NDArray[Any]) -> NDArray[np.float32]:
        both: NDArray[np.float32] = logits(images) + logits(images[:, :, ::-1])
        return both / np.float32(2)

    return averaged


def score(
    logits: Outputs,
    task: Task,
    split: data.Split,
    batch_size: int,
    tick: Callable[[int, int], None],
) -> Results:
    """`Evaluator.results` of a model that another runtime runs.

    Args:
        logits: the model.
        task: what is kept of each example.
        split: the examples.
        batch_size: rows of a batch.
        tick: told how many of how many batches are done.
    """
    results = jax.jit(task.results)
    chunks = _chunks(split.size, batch_size)
    run = padded(logits, min(batch_size, split.size))
    kept: list[Results] = []
    for number, indices in enumerate(chunks, start=1):
        kept.append(jax.device_get(results(run(split.read(indices)), split.labels[indices])))
        tick(number, len(chunks))
    return joined(kept)


def padded(outputs: Outputs, rows: int) -> Outputs:
    """The same for up to `rows` images, of which the model always sees as many: compiled once."""

    def run(images: NDArray[Any]) -> NDArray[np.float32]:
        if len(images) == rows:
            return outputs(images)
        batch = np.zeros((rows, *images.shape[1:]), images.dtype)
        batch[: len(images)] = images
        return outputs(batch)[: len(images)]

    return run


@dataclasses.dataclass(frozen=True)
class Difference:
    """How far one model's probabilities are from another's.

    Attributes:
        batch: rows of the batches that the other one was given.
        examples: how many were compared.
        largest: of all probabilities, the largest absolute difference; NaN if one is.
        same_class: of how many examples both say the same class.
    """

    batch: int
    examples: int
    largest: float
    same_class: int


def compare(
    expected: Outputs,
    actual: Outputs,
    split: data.Split,
    indices: NDArray[np.integer],
    *,
    batch: int,
    tick: Callable[[int, int], None],
) -> Difference:
    """Compares what two models make of the same examples.

    Args:
        expected: probabilities by the model to compare with.
        actual: probabilities by the other.
        split: the examples.
        indices: which of them, `[n]`.
        batch: rows that the other model is given at a time; the last batch may have fewer.
        tick: told how many of how many blocks are done.

    Raises:
        NonFiniteError: the first model's outputs are not finite.
    """
    blocks = _chunks(len(indices), _BLOCK)
    reference = padded(expected, min(_BLOCK, len(indices)))
    largest, same_class = 0.0, 0
    for number, block in enumerate(blocks, start=1):
        images = split.read(indices[block])
        wanted = reference(images).astype(np.float64)
        if not np.isfinite(wanted).all():
            raise NonFiniteError(
                f"the checkpoint's outputs are NaN or infinite in examples {indices[block[0]]} to "
                f"{indices[block[-1]]} of split {split.name!r}; choose another with "
                "--checkpoint, or of a sweep with --config.train.export_replica"
            )
        found = np.concatenate([actual(images[rows]) for rows in _chunks(len(images), batch)])
        if found.shape != wanted.shape:
            raise RuntimeError(f"outputs of shape {found.shape}, expected {wanted.shape}")
        largest = float(np.maximum(largest, np.abs(found - wanted).max()))
        same_class += int((found.argmax(-1) == wanted.argmax(-1)).sum())
        tick(number, len(blocks))
    return Difference(batch, len(indices), largest, same_class)


def _chunks(count: int, size: int) -> list[NDArray[np.int64]]:
    indices = np.arange(count)
    return [indices[start : start + size] for start in range(0, count, size)]
