"""A row of numbers as one line of text."""

import itertools
import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """Draws `values` as a line of Unicode blocks, lowest block at the least, highest at the most.

    More values than `width` are grouped into `width` equal parts, each drawn as its mean; fewer
    are drawn one a character. Equal values are all drawn low; a value (or a part) that is not
    finite is drawn as a blank.

    Args:
        values: the numbers, in order.
        width: the most characters to use, at least 1.

    Returns:
        `min(len(values), width)` characters; empty for no values.

    >>> sparkline([0, 1, 2, 3, 4, 3, 2, 1, 0], width=80)
    '▁▃▅▆█▆▅▃▁'
    """
    count = min(len(values), width)
    edges = [index * len(values) // max(count, 1) for index in range(count + 1)]
    parts = [values[start:stop] for start, stop in itertools.pairwise(edges)]
    means = [math.fsum(part) / len(part) if _all_finite(part) else math.nan for part in parts]
    finite = [mean for mean in means if math.isfinite(mean)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return "".join(_block(mean, low, high) for mean in means)


def _all_finite(values: Sequence[float]) -> bool:
    return all(math.isfinite(value) for value in values)


def _block(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return " "
    if high == low:
        return BLOCKS[0]
    # Halves round up, so that a symmetric curve looks symmetric.
    return BLOCKS[math.floor((value - low) / (high - low) * (len(BLOCKS) - 1) + 0.5)]
