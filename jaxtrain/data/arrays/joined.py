"""Several splits as one."""

import functools
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxtrain.data.split import Split


class Joined(Split):
    """The examples of several splits, one after the other.

    Args:
        name: the name of them all.
        parts: two splits or more, of one image shape; none is `random`.
    """

    def __init__(self, name: str, parts: Sequence[Split]):
        labels = np.concatenate([part.labels for part in parts])
        super().__init__(name, labels, parts[0].image_shape, parts[0].origin)
        self._parts = parts
        self._starts = np.cumsum([0, *(part.size for part in parts)])

    def read(
        self, indices: NDArray[np.integer], row_seeds: NDArray[np.uint64] | None = None
    ) -> NDArray[Any]:
        """Reads through the parts."""
        examples = np.empty((len(indices), *self.image_shape), self.dtype)
        which = np.searchsorted(self._starts, indices, side="right") - 1
        for number, part in enumerate(self._parts):
            rows = np.flatnonzero(which == number)
            if rows.size:
                examples[rows] = part.read(indices[rows] - self._starts[number])
        return examples

    def _checksum(self) -> int:
        prints = [part.fingerprint for part in self._parts]
        return functools.reduce(lambda crc, each: zlib.crc32(each.encode(), crc), prints, 0)
