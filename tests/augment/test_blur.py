"""Blurred images against SciPy."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.ndimage import gaussian_filter1d

from jaxtrain.augment.blur import Blur, blurred
from jaxtrain.augment.draws import uniform
from jaxtrain.keys import step_key

KEY = step_key(2, 9, "augment")


def images(batch: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.RandomState(0).rand(batch, *shape).astype(np.float32)


def rows(count: int) -> jax.Array:
    return jnp.arange(count, dtype=jnp.int32)


def reference(image: np.ndarray, sigma: float, radius: int) -> np.ndarray:
    """One image `[H, W, C]` in float64."""
    image = image.astype(np.float64)
    for axis in (0, 1) if sigma else ():
        image = gaussian_filter1d(image, sigma, axis, mode="mirror", radius=radius)
    return image


@pytest.mark.parametrize("shape", [(12, 9, 3), (9, 16, 1), (1, 7, 4), (3, 2, 3)])
def test_each_image_has_its_own_gaussian(shape):
    sigma = np.array([0.0, 0.1, 0.5, 1.3, 2.0], np.float32)
    image = images(5, shape)
    found = jax.jit(functools.partial(blurred, KEY, radius=6))(
        jnp.asarray(image), jnp.asarray(sigma)
    )
    for one, result, each in zip(image, found, sigma, strict=True):
        np.testing.assert_allclose(result, reference(one, each, 6), atol=1e-6)
    np.testing.assert_array_equal(found[0], image[0])


def test_images_are_blurred_as_their_rows_draw():
    image = images(60, (6, 5, 3))
    found = np.asarray(jax.jit(Blur((0.5, 1.5), p=0.3))(KEY, jnp.asarray(image), rows(60)))
    draws = np.asarray(uniform(KEY, rows(60), 2))
    radius = math.ceil(3 * 1.5)
    for one, result, (chance, share) in zip(image, found, draws, strict=True):
        sigma = 0.5 + share if chance < 0.3 else 0.0
        np.testing.assert_allclose(result, reference(one, sigma, radius), atol=1e-6)
    kept = (found == image).all(axis=(1, 2, 3))
    assert 0.5 < kept.mean() < 0.9
    assert found.dtype == np.float32


def test_no_sigma_and_no_share_change_no_bit():
    image = images(8, (6, 5, 3))
    for operation in (Blur((0, 0), p=1.0), Blur((0.5, 3), p=0.0)):
        np.testing.assert_array_equal(operation(KEY, jnp.asarray(image), rows(8)), image)


def test_white_stays_white_and_in_range():
    image = jnp.ones((4, 9, 9, 3), jnp.float32)
    found = np.asarray(Blur((3, 10), p=1.0)(KEY, image, rows(4)))
    assert found.max() <= 1
    np.testing.assert_allclose(found, 1, atol=1e-6)
