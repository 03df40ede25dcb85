import doctest
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.report import sparkline

BLOCKS = "▁▂▃▄▅▆▇█"


def test_the_docstring_is_true():
    results = doctest.testmod(sys.modules["jaxtrain.report.sparkline"])
    assert (results.failed, results.attempted) == (0, 1)


@pytest.mark.parametrize(
    ("values", "width", "expected"),
    [
        ([], 10, ""),
        ([3.0], 10, "▁"),
        ([2, 2, 2], 10, "▁▁▁"),
        (list(range(8)), 8, BLOCKS),
        (list(range(8)), 80, BLOCKS),
        ([0, 2, 7, 7], 2, "▁█"),
        ([0, 0, 1], 2, "▁█"),
        ([math.nan, 0, 1], 3, " ▁█"),
        ([0, math.inf, 1, 1], 2, " ▁"),
        ([math.nan], 3, " "),
    ],
)
def test_examples(values, width, expected):
    assert sparkline(values, width) == expected


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300),
    st.integers(min_value=1, max_value=100),
)
def test_length_order_and_extremes(values, width):
    line = sparkline(values, width)
    assert len(line) == min(len(values), width)
    assert set(line) <= set(BLOCKS)
    if len(values) <= width:
        heights = [BLOCKS.index(block) for block in line]
        by_value = sorted(zip(values, heights, strict=True))
        assert [height for _, height in by_value] == sorted(heights)
        if min(values) < max(values):
            assert (min(heights), max(heights)) == (0, 7)
