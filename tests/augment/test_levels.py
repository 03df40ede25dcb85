"""Curves and blends of 8-bit images against Pillow, bit for bit where it rounds alike."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from jaxtrain.augment import levels
from jaxtrain.augment.levels import BLACK, FACTOR_BITS, GREY, MEAN, SMOOTH, Blend, Curve
from jaxtrain.keys import step_key

KEY = step_key(2, 9, "augment")
SHAPE = (21, 17)


def images(channels: int) -> np.ndarray:
    """Dull, bright, spread, flat and striped: uint8 `[5, 21, 17, channels]`."""
    random = np.random.RandomState(0)
    size = (*SHAPE, channels)
    return np.stack(
        [
            random.randint(30, 120, size),
            np.minimum(random.normal(240, 30, size), 255).clip(0),
            random.randint(0, 256, size),
            np.full(size, 77),
            np.where(np.arange(17)[:, np.newaxis] % 3 == 0, 10, 200) * np.ones(size),
        ]
    ).astype(np.uint8)


def pillow(image: np.ndarray) -> Image.Image:
    return Image.fromarray(image if image.shape[-1] == 3 else image[..., 0])


def array(image: Image.Image) -> np.ndarray:
    return np.asarray(image).reshape(*SHAPE, -1)


@functools.cache
def _curved():
    return jax.jit(functools.partial(levels.curved, KEY))


def curved(image: np.ndarray, threshold=256, mask=255, stretch=False, equalize=False):
    """All images by one curve."""

    def each(value) -> jax.Array:
        return jnp.full(len(image), value)

    curve = Curve(each(threshold), each(mask), each(stretch), each(equalize))
    return np.asarray(_curved()(jnp.asarray(image), curve))


@pytest.mark.parametrize("channels", [1, 3])
def test_histograms_count_all_in_both_ways(channels):
    image = images(channels)
    expected = [
        [np.bincount(one[..., c].ravel(), minlength=256) for c in range(channels)] for one in image
    ]
    for count in (levels.histogram, levels._counted_by_product):
        found = np.asarray(jax.jit(count)(jnp.asarray(image)))
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("curve", "operation"),
    [
        *(
            ({"threshold": t}, functools.partial(ImageOps.solarize, threshold=t))
            for t in (0, 1, 128, 255, 256)
        ),
        *(
            ({"mask": 256 - 2 ** (8 - b)}, functools.partial(ImageOps.posterize, bits=b))
            for b in (1, 2, 4, 7, 8)
        ),
        ({"equalize": True}, ImageOps.equalize),
    ],
)
def test_curves_are_those_of_pillow(channels, curve, operation):
    image = images(channels)
    for one, found in zip(image, curved(image, **curve), strict=True):
        np.testing.assert_array_equal(found, array(operation(pillow(one))))


@pytest.mark.parametrize("channels", [1, 3])
def test_autocontrast_is_that_of_pillow_but_for_its_floats(channels):
    image = images(channels)
    found = curved(image, stretch=True).astype(int)
    low, high = (f(image.astype(int), axis=(1, 2), keepdims=True) for f in (np.min, np.max))
    exact = np.where(high > low, (image - low) * 255 // np.maximum(high - low, 1), image)
    np.testing.assert_array_equal(found, exact)
    for one, result in zip(image, found, strict=True):
        expected = array(ImageOps.autocontrast(pillow(one))).astype(int)
        assert abs(result - expected).max() <= 1


def test_equalize_of_few_pixels_changes_nothing():
    image = np.arange(2 * 21 * 17, dtype=np.uint8).reshape(2, 21, 17, 1)[:, :10, :10]
    np.testing.assert_array_equal(curved(image, equalize=True), image)


def test_each_image_has_its_own_curve():
    image = np.repeat(images(3)[:1], 5, axis=0)
    curve = Curve(
        jnp.array([256, 100, 256, 256, 256]),
        jnp.array([255, 255, 192, 255, 255]),
        jnp.array([0, 0, 0, 1, 0]) > 0,
        jnp.array([0, 0, 0, 0, 1]) > 0,
    )
    found = np.asarray(_curved()(jnp.asarray(image), curve))
    np.testing.assert_array_equal(found[0], image[0])
    for at, alone in enumerate(
        [{"threshold": 100}, {"mask": 192}, {"stretch": True}, {"equalize": True}]
    ):
        np.testing.assert_array_equal(found[at + 1], curved(image, **alone)[0])


@functools.cache
def _blended():
    return jax.jit(functools.partial(levels.blended, KEY))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("other", "enhance"),
    [
        (BLACK, ImageEnhance.Brightness),
        (MEAN, ImageEnhance.Contrast),
        (GREY, ImageEnhance.Color),
        (SMOOTH, ImageEnhance.Sharpness),
    ],
)
def test_blends_are_those_of_pillow_but_for_its_cutting_off(channels, other, enhance):
    image = images(channels)
    for factor in (0.0, 0.125, 0.75, 1.0, 1.5, 1.875):
        blend = Blend(jnp.full(5, other), jnp.full(5, round(factor * 2**FACTOR_BITS)))
        found = np.asarray(_blended()(jnp.asarray(image), blend)).astype(int)
        for one, result in zip(image, found, strict=True):
            expected = array(enhance(pillow(one)).enhance(factor)).astype(int)
            assert set(np.unique(result - expected)) <= {0, 1}
            if factor in (0.0, 1.0):
                np.testing.assert_array_equal(result, expected)


def test_smoothed_is_that_of_pillow():
    for channels in (1, 3):
        image = images(channels)
        found = levels.smoothed(jnp.asarray(image))
        for one, result in zip(image, found, strict=True):
            np.testing.assert_array_equal(result, array(pillow(one).filter(ImageFilter.SMOOTH)))


@pytest.mark.parametrize("shape", [(1, 1), (2, 9), (9, 2), (3, 3)])
def test_smoothed_leaves_borders(shape):
    image = np.random.RandomState(0).randint(0, 256, (2, *shape, 3)).astype(np.uint8)
    found = np.asarray(levels.smoothed(jnp.asarray(image)))
    changed = found != image
    changed[:, 1:-1, 1:-1] = False
    assert not changed.any()
    assert (found != image).any() == (min(shape) == 3)


def test_luma_is_that_of_pillow():
    image = np.random.RandomState(0).randint(0, 256, (1, 200, 200, 3)).astype(np.uint8)
    found = np.asarray(levels.luma(jnp.asarray(image)))[0, ..., 0]
    np.testing.assert_array_equal(found, np.asarray(Image.fromarray(image[0]).convert("L")))


def test_values_between_levels_are_rounded_to_the_nearest():
    image = jnp.array([0.0, 0.4, 0.6, 254.4, 254.6, 255.0], jnp.float32) / 255
    assert levels.quantised(image).tolist() == [0, 0, 1, 254, 255, 255]
    every = jnp.arange(256, dtype=jnp.uint8)
    np.testing.assert_array_equal(levels.quantised(every.astype(jnp.float32) / 255), every)
