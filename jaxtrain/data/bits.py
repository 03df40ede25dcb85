"""Random bits by counting: a hash of integers, the same on every machine and with every NumPy."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

# First word of every key: what it is for.
TRAINING: Final = 1
HOLDOUT: Final = 2
ROWS: Final = 3
SYNTHETIC: Final = 4

# SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
_U64: Final = np.uint64
_GOLDEN: Final = _U64(0x9E3779B97F4A7C15)
_WORD: Final = 2**64 - 1


def key(*numbers: int) -> NDArray[np.uint64]:
    """One key, `[1]`, of integers of 0 or more, of which the lowest 64 bits count."""
    state = np.zeros(1, _U64)
    for number in numbers:
        state = _mix((state ^ _U64(number & _WORD)) + _GOLDEN)
    return state


def at(keys: NDArray[np.uint64], positions: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The words at some positions, from 0, of the stream of each key; shapes broadcast."""
    return _mix(keys + (positions + _U64(1)) * _GOLDEN)


def words(keys: NDArray[np.uint64], count: int) -> NDArray[np.uint64]:
    """The first words, uint64 `[..., count]`, of the streams of keys `[..., 1]`."""
    return at(keys, np.arange(count, dtype=_U64))


def uniform(keys: NDArray[np.uint64], count: int) -> NDArray[np.float64]:
    """The first numbers, float64 `[n, count]` in [0, 1), of the streams of keys `[n]`."""
    return (words(keys[:, np.newaxis], count) >> _U64(11)).astype(np.float64) * 2.0**-53


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> _U64(27))) * _U64(0x94D049BB133111EB)
    return state ^ (state >> _U64(31))
