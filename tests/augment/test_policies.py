"""The policies against Pillow and torchvision's tables, and their independence of the topology."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import data_mesh
from jax.sharding import NamedSharding, PartitionSpec
from PIL import Image, ImageEnhance, ImageOps

from jaxtrain.augment.draws import uniform
from jaxtrain.augment.policies import Choices, RandAugment, Range, TrivialAugment, changes
from jaxtrain.keys import step_key

KEY = step_key(2, 9, "augment")
SIDES = (24, 30)
RAND = Range(0.3, (150 / 331 * 24, 150 / 331 * 30), 30.0, 0.9, 4)
WIDE = Range(0.99, (32.0, 32.0), 135.0, 0.99, 6)
NAMES = tuple(changes(RAND, 0.0, SIDES))


def rows(count: int) -> jax.Array:
    return jnp.arange(count, dtype=jnp.int32)


def photos(count: int, channels: int = 3, sides: tuple[int, int] = SIDES) -> np.ndarray:
    """Smooth images with some noise: uint8 `[count, *sides, channels]`."""
    random = np.random.RandomState(0)
    y, x = np.mgrid[: sides[0], : sides[1]] / 9
    wave, slope = random.rand(2, count, 1, 1, channels)
    smooth = np.sin(
        5 * wave + slope * y[np.newaxis, ..., np.newaxis] + x[np.newaxis, ..., np.newaxis]
    )
    noise = random.normal(0, 12, (count, *sides, channels))
    return (140 + 80 * smooth + noise).clip(0, 255).astype(np.uint8)


def unit(image: np.ndarray) -> jax.Array:
    return jnp.asarray(image.astype(np.float32) * np.float32(1 / 255))


@functools.cache
def compiled(operation):
    return jax.jit(operation)


def changed(operation, image: jax.Array, row: jax.Array) -> np.ndarray:
    return np.asarray(compiled(operation)(KEY, image, row))


@functools.cache
def _applied(most: Range, strengths: tuple[int, ...], fill: float):
    choices = Choices.of(most, strengths, SIDES)
    return jax.jit(lambda image, choice: choices.applied(KEY, image, choice, fill))


def pillow(most: Range, strength: float, image: Image.Image, fill: int):
    """Each operation as torchvision does it to a Pillow image; `strength` from -1 to 1."""

    def moved(*matrix: float) -> Image.Image:
        return image.transform(image.size, Image.Transform.AFFINE, matrix, fillcolor=fill)

    factor, slant = 1 + strength * most.factor, strength * most.shear
    down, right = (math.trunc(strength * pixels) for pixels in most.shift)
    return {
        "identity": lambda: image,
        "shear_x": lambda: moved(1, slant, 0, 0, 1, 0),
        "shear_y": lambda: moved(1, 0, 0, slant, 1, 0),
        "translate_x": lambda: moved(1, 0, -right, 0, 1, 0),
        "translate_y": lambda: moved(1, 0, 0, 0, 1, -down),
        "rotate": lambda: image.rotate(strength * most.degrees, fillcolor=fill),
        "brightness": lambda: ImageEnhance.Brightness(image).enhance(factor),
        "color": lambda: ImageEnhance.Color(image).enhance(factor),
        "contrast": lambda: ImageEnhance.Contrast(image).enhance(factor),
        "sharpness": lambda: ImageEnhance.Sharpness(image).enhance(factor),
        "posterize": lambda: ImageOps.posterize(image, 8 - round(abs(strength) * most.bits)),
        "solarize": lambda: ImageOps.solarize(image, 256 * (1 - abs(strength))),
        "autocontrast": lambda: ImageOps.autocontrast(image),
        "equalize": lambda: ImageOps.equalize(image),
    }


@pytest.mark.parametrize("most", [RAND, WIDE], ids=["rand", "wide"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_operations_are_those_of_pillow(name, channels, most):
    strengths = (0, 4, 9, 17, 30)
    at = NAMES.index(name) + len(NAMES) * np.arange(2 * len(strengths))
    image = photos(len(at), channels)
    fill = 0.25 if channels == 1 else 0.0
    found = np.asarray(_applied(most, strengths, fill)(jnp.asarray(image), jnp.asarray(at)))
    signed = [sign * strength / 30 for strength in strengths for sign in (1, -1)]
    for one, result, strength in zip(image, found, signed, strict=True):
        given = Image.fromarray(one if channels == 3 else one[..., 0])
        expected = np.asarray(pillow(most, strength, given, round(fill * 255))[name]()).reshape(
            one.shape
        )
        difference = abs(result.astype(int) - expected)
        if name in ("shear_x", "shear_y", "rotate"):
            # Where two pixels are equally near, rounding decides.
            assert (difference > 0).mean() < 0.03, strength
        elif name in ("brightness", "color", "contrast", "sharpness", "autocontrast"):
            assert difference.max() <= 1, strength
        else:
            np.testing.assert_array_equal(result, expected)


def test_strengths_are_those_of_torchvision():
    """Its tables, at strengths 0, 9 and 30 of 31, and of RandAugment on 24 x 30 pixels."""
    for share, slant, shift, factor, kept, threshold in [
        (0.0, 0.0, (0, 0), 1.0, 8, 256),
        (0.3, 0.09, (3, 4), 1.27, 7, 180),
        (-0.3, -0.09, (-3, -4), 0.73, 7, 180),
        (1.0, 0.3, (10, 13), 1.9, 4, 0),
    ]:
        found = changes(RAND, share, SIDES)
        assert found["shear_x"].matrix == pytest.approx((1, 0, 0, slant, 1, 0))
        assert found["translate_y"].matrix == (1, 0, -shift[0], 0, 1, 0)
        assert found["translate_x"].matrix == (1, 0, 0, 0, 1, -shift[1])
        assert found["rotate"].matrix[1] == pytest.approx(math.sin(math.radians(30 * share)))
        for name in ("brightness", "color", "contrast", "sharpness"):
            assert found[name].factor == pytest.approx(factor)
        assert found["posterize"].mask == 256 - 2 ** (8 - kept)
        assert found["solarize"].threshold == threshold
    assert len(NAMES) == 14
    masks = {changes(WIDE, strength / 30, SIDES)["posterize"].mask for strength in range(31)}
    assert masks == {256 - 2 ** (8 - bits) for bits in range(2, 9)}


def test_no_magnitude_changes_no_bit_where_there_is_one():
    image = photos(28)
    found = np.asarray(_applied(RAND, (0,), 0.5)(jnp.asarray(image), rows(28)))
    for at, (one, result) in enumerate(zip(image, found, strict=True)):
        same = (result == one).all()
        assert same == (NAMES[at % 14] not in ("autocontrast", "equalize"))


@pytest.mark.parametrize("operation", [RandAugment(layers=0), RandAugment(layers=0, magnitude=30)])
def test_no_layers_change_no_bit(operation):
    image = jnp.asarray(np.random.RandomState(0).rand(6, 5, 4, 3).astype(np.float32))
    np.testing.assert_array_equal(changed(operation, image, rows(6)), image)


def test_values_between_the_levels_stay_where_nothing_changes():
    image = np.random.RandomState(0).rand(60, *SIDES, 3).astype(np.float32)
    found = changed(RandAugment(1, 0), jnp.asarray(image), rows(60))
    draws = np.asarray(uniform(KEY, rows(60), 1))[:, 0]
    for one, result, choice in zip(image, found, (draws * 28).astype(int), strict=True):
        if NAMES[choice % 14] not in ("autocontrast", "equalize"):
            np.testing.assert_array_equal(result, one)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("operation", "most", "strengths"),
    [
        (RandAugment(3, 14, 0.5), RAND, (14,)),
        (RandAugment(4, 14, 0.5, p=0.5), RAND, (14,)),
        (TrivialAugment(0.5), WIDE, tuple(range(31))),
    ],
)
def test_policies_do_what_each_row_draws(operation, most, strengths, channels):
    image = photos(64, channels)
    found = changed(operation, unit(image), rows(64))
    applied = _applied(most, strengths, 0.5)
    expected = jnp.asarray(image)
    layers = operation.layers if isinstance(operation, RandAugment) else 1
    p = operation.p if isinstance(operation, RandAugment) else 1.0
    draws = np.asarray(uniform(KEY, rows(64), layers))
    for draw in draws.T:
        choice = (draw / np.float32(p) * 28 * len(strengths)).astype(np.int32)
        expected = applied(expected, jnp.asarray(np.where(draw < p, choice, 0)))  # 0: identity
    np.testing.assert_array_equal(found, unit(np.asarray(expected)))
    assert found.dtype == np.float32
    assert found.shape == image.shape
    assert (found != unit(image)).any(axis=(1, 2, 3)).mean() > 0.7


def test_every_operation_and_strength_is_drawn():
    count = 4000
    draws = np.asarray(uniform(KEY, rows(count), 1))[:, 0]
    choice = (draws * 28 * 31).astype(int)
    assert choice.min() >= 0
    assert choice.max() < 28 * 31
    for part, expected in ((choice % 14, count / 14), (choice // 28, count / 31)):
        counts = np.bincount(part)
        assert ((counts - expected) ** 2 / expected).sum() < 59.7  # chi-squared, 30 degrees, 0.1 %


@pytest.mark.parametrize("operation", [RandAugment(), TrivialAugment()], ids=["rand", "trivial"])
def test_bits_are_the_same_on_one_and_on_eight_devices_and_in_any_part(operation):
    image, row = unit(photos(64)), rows(64)
    whole = changed(operation, image, row)
    mesh = data_mesh(jax.devices()[:8])
    apart = NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
    arguments = (KEY, *jax.device_put((image, row), apart))
    spread = jax.jit(operation, out_shardings=apart).lower(*arguments).compile()
    for collective in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
        assert collective not in spread.as_text()
    np.testing.assert_array_equal(spread(*arguments), whole)
    order = np.array([40, 3, 17])
    np.testing.assert_array_equal(changed(operation, image[order], row[order]), whole[order])


@pytest.mark.parametrize(
    ("operation", "sides"),
    [
        (RandAugment(2, 30, 1.0), (1, 1)),
        (TrivialAugment(), (1, 40)),
        (RandAugment(1, 30), (700, 2)),
    ],
)
def test_any_shape_is_taken(operation, sides):
    image = unit(photos(40, 3, sides))
    found = changed(operation, image, rows(40))
    assert found.shape == image.shape
    assert found.min() >= 0
    assert found.max() <= 1


@pytest.mark.parametrize("operation", [RandAugment(), TrivialAugment()], ids=["rand", "trivial"])
def test_images_that_are_neither_grey_nor_rgb_are_refused(operation):
    assert operation.complaint((8, 8, 4)) == (
        "needs 1 or 3 channels, but the images have 4; leave it out"
    )
    assert operation.complaint((8, 8, 1)) is operation.complaint((8, 8, 3)) is None
