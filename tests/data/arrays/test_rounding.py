"""Features that are the same in float32, or nearly so."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.data.arrays.rounding import check_rounding
from jaxtrain.errors import UsageError

Y = np.arange(4000) % 2
NOISE = np.random.RandomState(0).normal(0, 5, 4000)


def column(values):
    return np.asarray(values).reshape(-1, 1)


def refused(*parts):
    with pytest.raises(UsageError) as raised:
        check_rounding(parts, "x")
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_it_is_said_which_feature_and_how_to_mend_it():
    times = 1.7e9 + 40 * Y + NOISE
    features = np.stack([NOISE, times, times + 1e7], axis=1)
    assert refused(features) == (
        f"x: feature 1 has numbers up to 1.7e+09 with a deviation of {times.std():.3g}, but "
        f"float32 is off by "
        f"{(times.astype(np.float32) - times).std():.2g} there, more than 1% of that "
        "(as in 1 more); subtract its mean first, as in (x - mean) / std, in all splits and in "
        "what is to be predicted"
    )
    check_rounding([features - features.mean(axis=0)], "x")


@pytest.mark.parametrize(
    "values",
    [
        np.full(4000, 0.1),
        np.full(4000, 1.7e9 + 1),
        np.full(4000, 2**62 + 1),
        np.where(Y, 0.3, 0.1 + 0.2),  # equal but for the rounding of the sum
        np.where(Y, 1e6, 1e6 + 10),
        np.where(Y, 2**62, 2**62 - 2**40),  # exact
        np.where(Y, -1e30, 1e30),
        np.where(Y, -(2**63), 2**63 - 1),
        np.where(Y, 2**40, 2**40 + 2**18) + 1,  # off by the same for all
        np.where(Y, 1e-30, 1e-36),
        np.where(np.arange(4000) == 7, 1e30, NOISE),  # told apart by that one alone
        Y == 1,
        (1.7e9 + 40 * Y).astype(np.float32),  # lost before
    ],
)
def test_features_that_lose_nothing_or_have_nothing_to_lose(values):
    check_rounding([column(values)], "x")


@pytest.mark.parametrize(
    "values",
    [
        1.7e9 + 40 * Y,
        -1.7e9 - 40 * Y,
        2**31 - 10 + Y.astype(np.int32),
        np.int64(1_700_000_000_000_000_000) + Y,  # equal in float64 too
        np.uint64(2**64 - 1) - Y.astype(np.uint64),
        2**62 + Y,
        1e-50 * Y,  # 0 in float32
        (1 + 1e-9 * Y).astype(">f8"),
        np.longdouble(1) + Y * np.longdouble(1e-9),
    ],
)
def test_features_that_lose_what_they_say(values):
    assert refused(column(values)).startswith("x: feature 0 has numbers up to ")


@given(
    size=st.floats(1, 1e15),
    std=st.floats(1e-3, 1e3),
    seed=st.integers(0, 99),
    rows=st.integers(2, 2500),
    cut=st.integers(0, 2499),
)
def test_the_limit_is_one_percent_of_the_deviation_of_all_parts(size, std, seed, rows, cut):
    values = size + std * np.random.RandomState(seed).normal(size=rows)
    error = (values.astype(np.float32) - values).std()
    ratio = error / max(values.std(), 1e-30)
    constant = np.ptp(values) <= 2.0**-46 * np.abs(values).max()
    parts = [part for part in np.split(column(values), [min(cut, rows)]) if len(part)]
    if ratio > 0.0101 and not constant:
        assert "more than 1% of that; subtract" in refused(*parts)
    elif ratio < 0.0099 or constant:
        check_rounding(parts, "x")
