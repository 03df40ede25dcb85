"""Changed values against the formulas of torchvision, in NumPy, and against Pillow and colorsys."""

import colorsys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageEnhance

from jaxtrain.augment.colour import (
    Brightness,
    Contrast,
    Greyscale,
    Hue,
    Noise,
    Saturation,
    luma,
    turned,
)
from jaxtrain.augment.draws import symmetric
from jaxtrain.keys import step_key

KEY = step_key(2, 9, "augment")
FACTORS = np.array([0.0, 0.4, 1.0, 1.7], np.float32)


def rows(count: int) -> jax.Array:
    return jnp.arange(count, dtype=jnp.int32)


def images(batch: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.RandomState(0).rand(batch, *shape).astype(np.float32)


def reference(kind: type, image: np.ndarray, factor: float) -> np.ndarray:
    """torchvision's adjust_* of one image, float64."""
    image = image.astype(np.float64)
    grey = image @ [0.299, 0.587, 0.114] if image.shape[-1] == 3 else image
    other = {
        Brightness: np.zeros_like(image),
        Contrast: np.full_like(image, grey.mean()),
        Saturation: np.broadcast_to(grey.reshape(*image.shape[:2], -1), image.shape),
    }[kind]
    return np.clip(factor * image + (1 - factor) * other, 0, 1)


@pytest.mark.parametrize(
    ("kind", "channels"),
    [(kind, c) for kind in (Brightness, Contrast) for c in (1, 3, 4)] + [(Saturation, 3)],
)
def test_blends_are_those_of_torchvision(kind, channels):
    image = images(4, (5, 7, channels))
    found = kind(0.5).blended(jnp.asarray(image), jnp.asarray(FACTORS))
    for one, result, factor in zip(image, found, FACTORS, strict=True):
        np.testing.assert_allclose(result, reference(kind, one, factor), atol=1e-6)
    np.testing.assert_array_equal(found[2], image[2])


@pytest.mark.parametrize(
    ("kind", "enhance"),
    [
        (Brightness, ImageEnhance.Brightness),
        (Contrast, ImageEnhance.Contrast),
        (Saturation, ImageEnhance.Color),
    ],
)
def test_blends_are_those_of_pillow_but_for_its_rounding(kind, enhance):
    bytes_ = (images(4, (8, 8, 3)) * 255).astype(np.uint8)
    image = jnp.asarray(bytes_, jnp.float32) / 255
    found = np.asarray(kind(0.5).blended(image, jnp.asarray(FACTORS))) * 255
    for one, result, factor in zip(bytes_, found, FACTORS, strict=True):
        expected = np.asarray(enhance(Image.fromarray(one)).enhance(float(factor)), np.float64)
        np.testing.assert_allclose(result, expected, atol=2.5)


@pytest.mark.parametrize(("amount", "low", "high"), [(0.4, 0.6, 1.4), (1.5, 0.0, 2.5)])
def test_factors_are_uniform(amount, low, high):
    count = 2000
    image = jnp.full((count, 1, 1, 1), 0.1, jnp.float32)
    factors = np.asarray(Brightness(amount)(KEY, image, rows(count))).ravel() / 0.1
    span = high - low
    assert low - 1e-5 <= factors.min() < low + 0.01 * span
    assert high - 0.01 * span < factors.max() <= high + 1e-5
    assert abs(factors.mean() - (low + high) / 2) < 0.03 * span
    counts, _ = np.histogram(factors, 10, (low, high + 1e-4))
    assert ((counts - 200) ** 2 / 200).sum() < 27.9  # chi-squared, 9 degrees, 0.1 %


def test_one_factor_an_image():
    image = np.full((3, 4, 4, 3), 0.2, np.float32)
    found = np.asarray(Brightness(0.5)(KEY, jnp.asarray(image), rows(3)))
    assert (found == found[:, :1, :1, :1]).all()
    assert len(set(found[:, 0, 0, 0].tolist())) == 3


def test_bright_values_are_clipped():
    image = jnp.full((50, 2, 2, 1), 0.9, jnp.float32)
    found = np.asarray(Brightness(1.0)(KEY, image, rows(50)))
    assert found.max() == 1.0
    assert found.min() >= 0.0


def test_grey_stays_grey_in_saturation():
    grey = np.repeat(images(4, (5, 5, 1)), 3, axis=-1)
    found = Saturation(0.9)(KEY, jnp.asarray(grey), rows(4))
    np.testing.assert_allclose(found, grey, atol=1e-6)


def test_luma_of_white_and_of_the_primaries():
    colours = jnp.array([[[[1.0, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]]]], jnp.float32)
    np.testing.assert_allclose(luma(colours).ravel(), [1, 0.299, 0.587, 0.114], rtol=1e-6)


def hues() -> np.ndarray:
    """Random, grey, black, white, primary and half-grey pixels: float32 `[1, 9, 5, 3]`."""
    corners = np.stack(np.meshgrid(*[[0, 0.5, 1]] * 3), axis=-1).reshape(-1, 3)
    greys = np.repeat(np.linspace(0, 1, 5)[:, np.newaxis], 3, axis=1)
    pixels = np.concatenate([corners, greys, np.random.RandomState(0).rand(13, 3)])
    return pixels.astype(np.float32).reshape(1, 9, 5, 3)


@pytest.mark.parametrize("turn", [0.0, 1 / 3, -1 / 3, 0.5, -0.5, 0.07, -0.21])
def test_hue_is_turned_as_in_colorsys(turn):
    image = hues()
    found = np.asarray(jax.jit(turned)(jnp.asarray(image), jnp.array([turn], jnp.float32)))
    for pixel, result in zip(image.reshape(-1, 3), found.reshape(-1, 3), strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel.astype(np.float64).tolist())
        expected = colorsys.hsv_to_rgb((hue + turn) % 1.0, saturation, value)
        np.testing.assert_allclose(result, expected, atol=1e-6)
    assert found.min() >= 0
    assert found.max() <= 1


def test_a_third_of_a_turn_moves_the_channels_on():
    image = images(1, (8, 8, 3))
    found = turned(jnp.asarray(image), jnp.array([1 / 3], jnp.float32))
    np.testing.assert_allclose(found, np.roll(image, 1, axis=-1), atol=1e-6)


def test_each_image_has_its_own_hue():
    image = np.repeat(hues(), 20, axis=0)
    found = np.asarray(Hue(0.2)(KEY, jnp.asarray(image), rows(20)))
    turns = 0.2 * symmetric(KEY, rows(20), 1)[:, 0]
    np.testing.assert_allclose(found, turned(jnp.asarray(image), turns), atol=1e-6)
    assert len({one.tobytes() for one in found}) == 20
    np.testing.assert_array_equal(Hue(0.0)(KEY, jnp.asarray(image), rows(20)), image)


def test_greyscale_takes_the_colour_of_its_share():
    image = images(400, (3, 2, 3))
    found = np.asarray(Greyscale(0.3)(KEY, jnp.asarray(image), rows(400)))
    grey = (found == np.asarray(luma(jnp.asarray(image)))).all(axis=(1, 2, 3))
    kept = (found == image).all(axis=(1, 2, 3))
    assert (grey ^ kept).all()
    assert 0.22 < grey.mean() < 0.38
    np.testing.assert_array_equal(Greyscale(0.0)(KEY, jnp.asarray(image), rows(400)), image)


def test_noise_has_its_standard_deviation_and_is_clipped():
    image = jnp.full((32, 16, 16, 3), 0.5, jnp.float32)
    found = np.asarray(Noise(0.1)(KEY, image, rows(32)))
    assert abs(found.mean() - 0.5) < 0.003
    assert abs(found.std() - 0.1) < 0.003
    assert len(np.unique(found)) > 0.9 * found.size  # another draw for each value
    found = np.asarray(Noise(0.5)(KEY, jnp.ones_like(image), rows(32)))
    assert found.max() == 1.0
    assert 0.45 < (found == 1.0).mean() < 0.55
    assert found.min() >= 0.0
