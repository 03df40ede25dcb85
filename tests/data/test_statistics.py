"""What features are standardised by."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.data import ArraySplit, Statistics, Subset, statistics


def split(features: np.ndarray) -> ArraySplit:
    return ArraySplit("train", features, np.zeros(len(features), np.int32), "here")


@given(
    rows=st.integers(1, 3000),
    features=st.integers(1, 5),
    seed=st.integers(0, 99),
    dtype=st.sampled_from([np.float16, np.float32, np.float64, np.int16]),
)
def test_they_are_the_mean_and_the_deviation_of_what_the_model_sees(rows, features, seed, dtype):
    random = np.random.RandomState(seed)
    values = (random.normal(3.0, 20.0, (rows, features))).astype(dtype)
    found = statistics(split(values))
    seen = values.astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(found.mean, seen.mean(0), rtol=1e-12, atol=1e-12)
    expected = seen.std(0) if rows > 1 else np.ones(features)
    constant = seen.min(0) == seen.max(0)
    np.testing.assert_allclose(found.std, np.where(constant, 1.0, expected), rtol=1e-10)


@pytest.mark.parametrize("constant", [0.0, 0.1, -1e30, 1e-45])
def test_a_constant_feature_is_divided_by_one(constant):
    values = np.full((1500, 2), np.float32(constant))
    values[:, 1] = np.arange(1500) % 2
    found = statistics(split(values))
    assert found == Statistics((float(np.float32(constant)), 0.5), (1.0, 0.5))


def test_a_deviation_too_small_to_divide_by_in_float32_is_none():
    values = np.array([[0.0], [1e-40]], np.float32)
    assert statistics(split(values)).std == (1.0,)


def test_large_offsets_do_not_drown_the_deviation():
    values = (1e6 + np.arange(4000)[:, np.newaxis] % 3).astype(np.float32)
    np.testing.assert_allclose(statistics(split(values)).std, values.astype(float).std(0), 1e-12)


def test_they_are_those_of_the_rows_alone():
    values = np.arange(12, dtype=np.float32).reshape(6, 2)
    part = Subset("train", split(values), np.array([1, 4]))
    assert statistics(part) == Statistics((5.0, 6.0), (3.0, 3.0))
