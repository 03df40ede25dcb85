"""Whether features still differ once they are float32."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxtrain.data.examples import as_features
from jaxtrain.errors import UsageError

# Of a feature's deviation, what that of its rounding errors may be.
_MOST: Final = 0.01
# Of a feature's size, how far computed float64 numbers may be apart that were meant to be equal.
_NOISE: Final = 2.0**-46
_ROWS: Final = 1024


class _Deviation:
    """The deviation of each of `[D]` numbers, from rows that come in any portions."""

    def __init__(self) -> None:
        self._count = 0
        self._sum: Any = 0.0
        self._squares: Any = 0.0

    def add(self, rows: NDArray[np.float64]) -> None:
        """Adds `[N, D]`, of which some number lies within a few deviations of 0."""
        self._count += len(rows)
        self._sum += rows.sum(axis=0)
        self._squares += np.square(rows).sum(axis=0)

    def value(self) -> NDArray[np.float64]:
        """Of all that were added, `[D]`."""
        variance = self._squares / self._count - np.square(self._sum / self._count)
        return np.sqrt(np.maximum(variance, 0.0))


def check_rounding(parts: Sequence[NDArray[Any]], where: str) -> None:
    """Refuses features that lose in float32 what tells the examples apart.

    As `1.7e9 + y`: float32 numbers of that size are 128 apart. Constant features may lose what
    they like. Arrays whose numbers are all exact in float32 are not read.

    Args:
        parts: finite numbers `[N, D]` up to `LARGEST_FEATURE`, all of one `D`: the training
            examples together.
        where: what they are, for messages.

    Raises:
        UsageError: the rounding errors of a feature deviate by more than 1 % of its deviation.
    """
    if all(np.can_cast(part.dtype, np.float32) for part in parts):
        return
    low, high = _range(parts)
    size = np.maximum(np.abs(low.astype(np.float64)), np.abs(high.astype(np.float64)))
    spread = _above(high, low)
    constant = spread == 0
    if any(part.dtype.kind == "f" for part in parts):
        constant |= spread <= _NOISE * size
    # Squares of very small numbers would be 0.
    unit = np.where(constant, 1.0, spread)
    own, lost = _Deviation(), _Deviation()
    for rows in _chunks(parts):
        offsets = _above(rows, low)
        rounded = as_features(rows).astype(np.float64) - as_features(low).astype(np.float64)
        own.add(offsets / unit)
        lost.add((rounded - offsets) / unit)
    deviation, error = own.value() * unit, lost.value() * unit
    bad = np.flatnonzero((error > _MOST * deviation) & ~constant)
    if bad.size:
        first = bad[0]
        others = f" (as in {bad.size - 1:,} more)" if bad.size > 1 else ""
        raise UsageError(
            f"{where}: feature {first} has numbers up to {size[first]:.3g} with a deviation of "
            f"{deviation[first]:.3g}, but float32 is off by {error[first]:.2g} there, more than "
            f"{_MOST:.0%} of that{others}; subtract its mean first, as in (x - mean) / std, in all "
            "splits and in what is to be predicted"
        )


def _range(parts: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The smallest and the largest number of each feature, in the parts' own dtype."""
    low = high = parts[0][0]
    for rows in _chunks(parts):
        low, high = np.minimum(low, rows.min(axis=0)), np.maximum(high, rows.max(axis=0))
    return low, high


def _above(values: NDArray[Any], low: NDArray[Any]) -> NDArray[np.float64]:
    """By how much values are above the smallest ones, also integers that float64 cannot hold."""
    if values.dtype.kind in "iu" and low.dtype.kind in "iu":
        # Modulo 2^64, so that no difference is out of range.
        return (values.astype(np.uint64) - low.astype(np.uint64)).astype(np.float64)
    return values.astype(np.float64) - low.astype(np.float64)


def _chunks(parts: Sequence[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    for part in parts:
        for start in range(0, len(part), _ROWS):
            yield part[start : start + _ROWS]
