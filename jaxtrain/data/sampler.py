"""Which examples a batch holds: a pure function of (seed, step), at any step at once.

Everything is integer arithmetic of our own, so that a seed means the same order on every machine
and with every NumPy, for ever; the tests pin it with golden values.
"""

import functools
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxtrain.data import bits
from jaxtrain.errors import UsageError

# Below about 16 rounds the order of sets of less than ten examples is measurably not uniform.
_ROUNDS: Final = 16

# Batches that are looked up at once.
_BLOCK: Final = 32

_U64: Final = np.uint64


class Permutation:
    """A pseudo-random permutation of `[0, size)` that is evaluated only where it is asked.

    A position is written as (left, right) on the smallest near-square grid with `size` cells or
    more. Each Feistel round shifts one coordinate, modulo its range, by a random function of the
    other one (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002); what lands outside
    `[0, size)` goes through again until it is inside (cycle walking), which fewer than one in
    sqrt(size) do.

    Args:
        size: number of examples, 1 or more.
        words: the key: integers, 0 or more, of which the lowest 64 bits count.
    """

    def __init__(self, size: int, *words: int):
        self._size = size
        self._rows = math.isqrt(size - 1) + 1
        self._columns = -(-size // self._rows)
        keys = bits.words(bits.key(*words), _ROUNDS)
        shifts = bits.words(keys[:, np.newaxis], self._rows)
        self._left_shifts = shifts[0::2] % _U64(self._rows)
        self._right_shifts = shifts[1::2] % _U64(self._columns)

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Maps int64 positions `[n]` in `[0, size)` to indices `[n]` in `[0, size)`."""
        indices = self._rounds(positions)
        while True:
            outside = np.flatnonzero(indices >= self._size)
            if not outside.size:
                return indices
            indices[outside] = self._rounds(indices[outside])

    def _rounds(self, cells: NDArray[np.int64]) -> NDArray[np.int64]:
        rows, columns = _U64(self._rows), _U64(self._columns)
        left, right = (part.view(_U64) for part in np.divmod(cells, self._columns))
        for left_shift, right_shift in zip(self._left_shifts, self._right_shifts, strict=True):
            left += left_shift[right.view(np.int64)]
            np.minimum(left, left - rows, out=left)  # modulo rows: below 0 wraps to the far end
            right += right_shift[left.view(np.int64)]
            np.minimum(right, right - columns, out=right)
        return (left * columns + right).view(np.int64)


class _Stream:
    """The endless stream of epochs, each its own permutation of all examples."""

    def __init__(self, size: int, seed: int):
        self._size = size
        # A batch touches one epoch, or two at its edge; threads read a few batches ahead.
        self._epoch = functools.lru_cache(maxsize=4)(
            lambda epoch: Permutation(size, bits.TRAINING, seed, epoch)
        )

    def read(self, start: int, count: int) -> NDArray[np.int64]:
        """Indices int64 `[count]` at stream positions start, start + 1, ..."""
        parts = []
        while count:
            epoch, offset = divmod(start, self._size)
            length = min(count, self._size - offset)
            parts.append(self._epoch(epoch)(np.arange(offset, offset + length, dtype=np.int64)))
            start, count = start + length, count - length
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


class Sampler:
    """Example indices of every training batch, with random access by step.

    Batches run on across an epoch's end, so every batch is full and every example comes exactly
    once an epoch.

    Args:
        size: number of training examples.
        batch_size: examples in the global batch.
        seed: 0 or more.

    Raises:
        UsageError: `size` is smaller than one batch.
    """

    def __init__(self, size: int, batch_size: int, seed: int):
        if not size:
            raise UsageError(
                f"the training split has 0 examples; train.batch_size={batch_size} needs "
                f"{batch_size} or more"
            )
        if size < batch_size:
            raise UsageError(
                f"train.batch_size={batch_size} is larger than the {size} training examples; "
                f"set it to {size} or less"
            )
        self._batch_size = batch_size
        self._seed = seed
        self._stream = _Stream(size, seed)

    def indices(self, step: int) -> NDArray[np.int64]:
        """Indices int64 `[batch_size]` of the batch of update `step`, counted from 1."""
        return self.block(step, 1)[0]

    def block(self, step: int, steps: int) -> NDArray[np.int64]:
        """Indices int64 `[steps, batch_size]` of the batches of `steps` updates from `step` on."""
        if step < 1:
            raise ValueError(f"steps count from 1, not {step}")
        size = self._batch_size
        return self._stream.read((step - 1) * size, steps * size).reshape(steps, size)

    def row_seeds(self, step: int) -> NDArray[np.uint64]:
        """A seed for each row of the batch of update `step`, uint64 `[batch_size]`.

        For what is drawn while the batch is read. A hash of (seed, step, row) alone.
        """
        return bits.words(bits.key(bits.ROWS, self._seed, step), self._batch_size)

    def batches(self, total_steps: int) -> "SampledBatches":
        """The batches of steps 1 to `total_steps` as a sequence for `load`."""
        return SampledBatches(self, total_steps)


class SampledBatches:
    """Item i holds the indices of step i + 1."""

    def __init__(self, sampler: Sampler, total_steps: int):
        self._sampler = sampler
        self._total_steps = total_steps
        # A block takes little more time than one batch. Threads read a few batches ahead.
        self._block = functools.lru_cache(maxsize=4)(
            lambda block: sampler.block(block * _BLOCK + 1, _BLOCK)
        )

    def __len__(self) -> int:
        return self._total_steps

    def __getitem__(self, item: int) -> NDArray[np.int64]:
        block, offset = divmod(item, _BLOCK)
        return self._block(block)[offset]

    def row_seeds(self, item: int) -> NDArray[np.uint64]:
        """The row seeds, uint64 `[batch_size]`, of step `item` + 1."""
        return self._sampler.row_seeds(item + 1)


class Interleaved:
    """The batches of several replicas: row b of replica k is row b x replicas + k.

    So a device that holds a part of the rows holds the same rows of every replica.

    Args:
        each: those of each replica, as many and as large.
    """

    def __init__(self, each: Sequence[SampledBatches]):
        self._each = each

    def __len__(self) -> int:
        return len(self._each[0])

    def __getitem__(self, item: int) -> NDArray[np.int64]:
        return np.stack([batches[item] for batches in self._each], axis=1).ravel()

    def row_seeds(self, item: int) -> NDArray[np.uint64]:
        """The row seeds of step `item` + 1, in the same order."""
        return np.stack([batches.row_seeds(item) for batches in self._each], axis=1).ravel()


def eval_indices(size: int, batch_size: int) -> NDArray[np.int64]:
    """Indices int64 `[batches, batch_size]` of every example once, in order, padded with -1."""
    batches = -(-size // batch_size)
    indices = np.full(batches * batch_size, -1, np.int64)
    indices[:size] = np.arange(size)
    return indices.reshape(batches, batch_size)


def holdout_rows(size: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Parts `[0, size)` into the rows kept for training and the `count` held out, both sorted.

    The same whatever the seed, so that runs with different seeds are compared on the same examples.
    A smaller holdout lies within a larger one.
    """
    held = np.zeros(size, bool)
    held[Permutation(size, bits.HOLDOUT)(np.arange(count, dtype=np.int64))] = True
    return np.flatnonzero(~held), np.flatnonzero(held)
