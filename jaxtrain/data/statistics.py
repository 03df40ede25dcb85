"""The mean and the deviation of each feature, which examples are standardised by."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxtrain.data.split import Split

_ROWS: Final = 1024
# Of float32, in which the step divides.
_SMALLEST: Final = np.finfo(np.float32).tiny


class Statistics(NamedTuple):
    """What is subtracted from each feature, and what divides it then.

    Attributes:
        mean: the means.
        std: the deviations, those of these very examples (no estimate for others); 1 for a
            feature that is constant.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]


def statistics(split: Split) -> Statistics:
    """The statistics of a split of features, computed in float64.

    Args:
        split: of features; it is read twice, some rows at a time and in their order, so that the
            result has the same bits on every machine.
    """
    features = split.image_shape[0]
    total = np.zeros(features)
    low, high = np.full(features, np.inf), np.full(features, -np.inf)
    for rows in _chunks(split):
        total += rows.sum(axis=0)
        np.minimum(low, rows.min(axis=0), out=low)
        np.maximum(high, rows.max(axis=0), out=high)
    # The mean of equal numbers may differ from them by rounding.
    mean = np.where(low == high, low, total / split.size)
    squares = np.zeros(features)
    for rows in _chunks(split):
        squares += np.square(rows - mean).sum(axis=0)
    std = np.sqrt(squares / split.size)
    std = np.where(std < _SMALLEST, 1.0, std)
    return Statistics(tuple(mean.tolist()), tuple(std.tolist()))


def _chunks(split: Split) -> Iterator[NDArray[np.float64]]:
    for start in range(0, split.size, _ROWS):
        indices = np.arange(start, min(start + _ROWS, split.size))
        yield split.read(indices).astype(np.float64)
