"""Deformed images against SciPy, from the definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.ndimage import gaussian_filter1d, map_coordinates

from jaxtrain.augment.draws import symmetric
from jaxtrain.augment.elastic import Elastic, averaging
from jaxtrain.keys import step_key

KEY = step_key(2, 9, "augment")


def images(batch: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.RandomState(0).rand(batch, *shape).astype(np.float32)


def rows(count: int) -> jax.Array:
    return jnp.arange(count, dtype=jnp.int32)


def deformed(operation: Elastic, image: np.ndarray) -> np.ndarray:
    return np.asarray(jax.jit(operation)(KEY, jnp.asarray(image), rows(len(image))))


@pytest.mark.parametrize(("side", "sigma"), [(9, 0.5), (30, 4.0), (5, 4.0), (1, 2.0), (7, 0.0)])
def test_averages_are_gaussian(side, sigma):
    line = np.random.RandomState(0).rand(side)
    expected = (
        gaussian_filter1d(line, sigma, mode="mirror", radius=int(4 * sigma)) if sigma else line
    )
    np.testing.assert_allclose(averaging(side, sigma) @ line, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("operation", "shape"),
    [
        (Elastic(), (29, 29, 1)),
        (Elastic(8.0, 1.5, fill=0.5), (12, 17, 3)),
        (Elastic(3, 0), (5, 1, 4)),
    ],
)
def test_pixels_come_from_where_the_smoothed_draws_say(operation, shape):
    image = images(4, shape)
    height, width, channels = shape
    noise = np.asarray(symmetric(KEY, rows(4), 2 * height * width), np.float64)
    grid = np.mgrid[:height, :width]
    found = deformed(operation, image)
    for one, result, drawn in zip(image, found, noise.reshape(4, 2, height, width), strict=True):
        shift = averaging(height, operation.sigma) @ drawn @ averaging(width, operation.sigma).T
        for channel in range(channels):
            expected = map_coordinates(
                one[..., channel].astype(np.float64),
                grid + operation.alpha * shift,
                order=1,
                mode="grid-constant",
                cval=operation.fill,
            )
            np.testing.assert_allclose(result[..., channel], expected, atol=1e-4)
    assert found.dtype == np.float32
    assert found.min() >= 0
    assert found.max() <= 1


def test_no_alpha_changes_no_bit():
    image = images(3, (7, 6, 3))
    for operation in (Elastic(0), Elastic(0, 0, fill=1)):
        np.testing.assert_array_equal(deformed(operation, image), image)


def test_shifts_have_the_deviation_that_is_documented():
    """Seen by a slope, whose values are columns."""
    side, alpha, sigma = 41, 10.0, 4.0
    slope = np.broadcast_to(
        np.arange(side, dtype=np.float32)[:, np.newaxis] / side, (200, side, side, 1)
    )
    found = deformed(Elastic(alpha, sigma), slope)
    moved = (found - slope)[:, 12:-12, 12:-12] * side
    assert abs(moved.std() - 0.16 * alpha / sigma) < 0.03
    assert abs(moved.mean()) < 0.03


def test_greatest_amounts_neither_overflow_nor_leave_the_range():
    found = deformed(Elastic(10_000, 100, fill=0.5), np.ones((2, 3, 40, 1), np.float32))
    assert ((found >= 0.5) & (found <= 1)).all()
