"""Moved pixels against NumPy, Pillow and cases worked out by hand."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from jaxtrain.augment.draws import symmetric
from jaxtrain.augment.geometry import (
    Affine,
    Flip,
    PadCrop,
    affine_motion,
    bilinear,
    nearest,
    resample,
    windows,
)
from jaxtrain.keys import step_key

KEY = step_key(2, 9, "augment")


def images(batch: int, height: int, width: int, channels: int = 1) -> np.ndarray:
    return np.random.RandomState(0).rand(batch, height, width, channels).astype(np.float32)


def rows(count: int) -> jax.Array:
    return jnp.arange(count, dtype=jnp.int32)


@pytest.mark.parametrize(("direction", "axis"), [("horizontal", 2), ("vertical", 1)])
def test_flip_mirrors_its_share_exactly(direction, axis):
    image = images(400, 3, 4)
    found = np.asarray(Flip(0.3, direction)(KEY, jnp.asarray(image), rows(400)))
    flipped = (found == np.flip(image, axis)).all(axis=(1, 2, 3))
    kept = (found == image).all(axis=(1, 2, 3))
    assert (flipped ^ kept).all()
    assert 0.22 < flipped.mean() < 0.38


@pytest.mark.parametrize(("direction", "axis"), [("horizontal", 2), ("vertical", 1)])
def test_flip_of_all(direction, axis):
    image = images(5, 3, 4, 3)
    found = Flip(1, direction)(KEY, jnp.asarray(image), rows(5))
    np.testing.assert_array_equal(found, np.flip(image, axis))


@pytest.mark.parametrize(("mode", "numpy_mode"), [("zero", "constant"), ("reflect", "reflect")])
def test_windows_are_those_of_the_padded_image(mode, numpy_mode):
    pad, height, width = 3, 5, 7
    corners = [(top, left) for top in range(2 * pad + 1) for left in range(2 * pad + 1)]
    image = images(len(corners), height, width, 2)
    found = windows(jnp.asarray(image), jnp.array(corners, jnp.int32), pad, mode)
    padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad), (0, 0)), numpy_mode)
    for one, whole, (top, left) in zip(found, padded, corners, strict=True):
        np.testing.assert_array_equal(one, whole[top : top + height, left : left + width])


def test_pad_crop_takes_every_window_with_the_same_chance():
    count, pad = 2500, 2
    image = np.zeros((count, 7, 7, 1), np.float32)
    image[:, 3, 3] = 1.0
    found = np.asarray(PadCrop(pad)(KEY, jnp.asarray(image), rows(count)))
    _, y, x, _ = np.nonzero(found)
    counts = np.bincount((y - 1) * 5 + (x - 1), minlength=25)
    assert counts.sum() == count
    assert ((counts - 100) ** 2 / 100).sum() < 51.2  # chi-squared, 24 degrees, 0.1 %


@functools.partial(jax.jit, static_argnames="bits")
def _moved(image: jax.Array, amounts: dict[str, jax.Array], fill: float, *, bits: int):
    alone = jax.tree.map(lambda value: value[jnp.newaxis], amounts)
    return resample(image[jnp.newaxis], affine_motion(**alone, bits=bits), fill)[0]


def moved(
    image: np.ndarray,
    fill: float = 0.0,
    *,
    angle: float = 0.0,
    slant: float = 0.0,
    growth: float = 0.0,
    shift: tuple[int, int] = (0, 0),
    bits: int = 20,
) -> np.ndarray:
    """One image `[H, W, C]`, moved; angles in degrees."""
    amounts = {
        "angle": np.float32(np.radians(angle)),
        "slant": np.float32(np.radians(slant)),
        "growth": np.float32(growth),
        "shift": np.array(shift, np.int32),
    }
    return np.asarray(_moved(image, amounts, fill, bits=bits))


@pytest.mark.parametrize("side", [4, 5])
def test_quarter_turns_are_exact(side):
    image = images(1, side, side, 3)[0]
    for turns in (-2, -1, 0, 1, 2):
        np.testing.assert_array_equal(moved(image, angle=90 * turns), np.rot90(image, turns))


def test_half_turn_of_an_oblong_is_exact():
    image = images(1, 4, 7)[0]
    np.testing.assert_array_equal(moved(image, angle=180), image[::-1, ::-1])


def test_shifts_are_exact_and_filled():
    image = images(1, 5, 6, 2)[0]
    down_right = np.full_like(image, 0.25)
    down_right[2:, 1:] = image[:-2, :-1]
    np.testing.assert_array_equal(moved(image, 0.25, shift=(2, 1)), down_right)
    up_left = np.zeros_like(image)
    up_left[:-1, :-4] = image[1:, 4:]
    np.testing.assert_array_equal(moved(image, shift=(-1, -4)), up_left)
    np.testing.assert_array_equal(moved(image, 0.5, shift=(5, 0)), np.full_like(image, 0.5))


def test_growth_doubles_about_the_centre():
    image = np.arange(5, dtype=np.float32).reshape(1, 5, 1) / 10
    np.testing.assert_allclose(moved(image, growth=1.0).ravel(), [0.1, 0.15, 0.2, 0.25, 0.3])
    shrunk = moved(image, growth=-0.5).ravel()
    np.testing.assert_allclose(shrunk, [0, 0, 0.2, 0.4, 0], atol=1e-6)


def test_slant_moves_the_top_to_the_right_and_the_bottom_to_the_left():
    line = np.zeros((5, 5, 1), np.float32)
    line[:, 2] = 1.0
    found = moved(line, slant=45)[..., 0]
    np.testing.assert_allclose(found, np.fliplr(np.eye(5)), atol=1e-5)


def test_fill_outside_is_constant():
    image = np.full((6, 6, 1), 0.7, np.float32)
    found = moved(image, 0.7, angle=33, slant=11, growth=-0.4, shift=(1, 2))
    np.testing.assert_allclose(found, 0.7, rtol=1e-6)
    found = moved(np.zeros((9, 9, 1), np.float32), 1.0, angle=45)
    assert found[0, 0] == found[-1, -1] == found[0, -1] == 1.0
    assert found[4, 4] == 0.0


def inverse(amounts: dict, height: int, width: int) -> np.ndarray:
    """Output (x, y, 1) to input (x, y), float64 `[2, 3]`, in pixel indices, from the definition."""
    angle, slant = math.radians(amounts["angle"]), math.radians(amounts["slant"])
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    lean = np.array([[1.0, -math.tan(slant)], [0.0, 1.0]])
    linear = np.linalg.inv(turn @ lean * (1 + amounts["growth"]))
    centre = np.array([(width - 1) / 2, (height - 1) / 2])
    offset = centre - linear @ (centre + np.array(amounts["shift"][::-1]))
    return np.column_stack([linear, offset])


def between(image: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """The definition in float64: zeros outside."""
    height, width, _ = image.shape
    y, x = np.mgrid[:height, :width]
    source_x, source_y = np.tensordot(matrix, np.stack([x, y, np.ones_like(x)]), 1)
    padded = np.pad(image.astype(np.float64), ((1, 2), (1, 2), (0, 0)))
    source_y, source_x = np.clip(source_y, -1, height) + 1, np.clip(source_x, -1, width) + 1
    top, left = np.floor(source_y).astype(int), np.floor(source_x).astype(int)
    down, right = (source_y - top)[..., np.newaxis], (source_x - left)[..., np.newaxis]
    upper = padded[top, left] * (1 - right) + padded[top, left + 1] * right
    lower = padded[top + 1, left] * (1 - right) + padded[top + 1, left + 1] * right
    return upper * (1 - down) + lower * down


AMOUNTS = st.fixed_dictionaries(
    {
        "angle": st.floats(-180, 180),
        "slant": st.floats(-60, 60),
        "growth": st.floats(-0.9, 0.9),
        "shift": st.tuples(st.integers(-6, 6), st.integers(-9, 9)),
    }
)


@settings(max_examples=60, deadline=None)
@given(AMOUNTS)
def test_any_motion_is_that_of_the_definition(amounts):
    image = images(1, 6, 9, 2)[0]
    expected = between(image, inverse(amounts, 6, 9))
    np.testing.assert_allclose(moved(image, **amounts, bits=16), expected, atol=6e-4)


def test_pillow_moves_the_inside_in_the_same_way():
    smooth = np.outer(np.sin(np.linspace(0, 3, 24)), np.cos(np.linspace(0, 2, 30)))
    image = smooth.astype(np.float32)[..., np.newaxis]
    amounts = {"angle": 20.0, "slant": 8.0, "growth": 0.2, "shift": (2, -3)}
    matrix = inverse(amounts, 24, 30)
    # Pillow counts from the edges of pixels.
    matrix[:, 2] += matrix[:, :2] @ [0.5, 0.5] * -1 + 0.5
    expected = Image.fromarray(image[..., 0]).transform(
        (30, 24), Image.Transform.AFFINE, matrix.ravel().tolist(), Image.Resampling.BILINEAR
    )
    inside = np.s_[4:-4, 6:-6]
    found = moved(image, **amounts)[..., 0]
    np.testing.assert_allclose(found[inside], np.asarray(expected)[inside], atol=1e-3)


def test_no_pixel_of_large_images_is_off():
    """An index and a weight that were rounded in two ways would be off by a whole pixel."""
    image = np.random.RandomState(1).rand(8, 160, 192, 3).astype(np.float32)
    operation = Affine(rotate=25, translate=0.1, scale=0.2, shear=12)
    found = np.asarray(jax.jit(operation)(KEY, jnp.asarray(image), rows(8)))
    drawn = np.asarray(symmetric(KEY, rows(8), 5)).astype(np.float64)
    for one, result, (angle, slant, growth, down, across) in zip(image, found, drawn, strict=True):
        amounts = {
            "angle": 25 * angle,
            "slant": 12 * slant,
            "growth": 0.2 * growth,
            "shift": (round(16 * down), round(19.2 * across)),
        }
        expected = between(one, inverse(amounts, 160, 192))
        np.testing.assert_allclose(result, expected, atol=2e-3)


def test_amounts_fill_their_ranges():
    """Of a single pixel's moves, and of the length of a bar."""
    count, side = 600, 41
    dot = np.zeros((1, side, side, 1), np.float32)
    dot[:, 20, 20] = 1.0
    dots = jnp.asarray(np.repeat(dot, count, 0))
    found = np.asarray(jax.jit(Affine(translate=0.25))(KEY, dots, rows(count)))
    _, y, x, _ = np.nonzero(found)
    for places in (y - 20, x - 20):
        assert places.min() == -10
        assert places.max() == 10
        assert abs(places.mean()) < 1
    bar = np.zeros((1, side, side, 1), np.float32)
    bar[:, :, 18:23] = 1.0
    found = np.asarray(
        jax.jit(Affine(scale=0.4))(KEY, jnp.asarray(np.repeat(bar, count, 0)), rows(count))
    )
    widths = found[:, 20, :, 0].sum(axis=1)
    assert 2.95 <= widths.min() < 3.2
    assert 6.8 < widths.max() <= 7.05
    assert abs(widths.mean() - 5) < 0.2


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 5, 3), (2, 300, 1), (600, 3, 1)])
def test_extreme_amounts_and_shapes_neither_overflow_nor_leave_the_range(shape):
    image = jnp.ones((6, *shape), jnp.float32)
    operation = Affine(rotate=180, translate=1, scale=0.9, shear=60, fill=0.5)
    found = np.asarray(jax.jit(operation)(KEY, image, rows(6)))
    assert found.shape == image.shape
    assert ((found >= 0.5) & (found <= 1.0 + 1e-6)).all()


def test_bilinear_takes_each_pixel_from_its_own_place():
    image = jnp.arange(12, dtype=jnp.float32).reshape(1, 3, 4, 1) / 16
    # In quarters: a whole place, between four, over the edge, and far outside.
    from_y = jnp.zeros((1, 3, 4), jnp.int32).at[0, 0].set(jnp.array([8, 2, -2, -400]))
    from_x = jnp.zeros((1, 3, 4), jnp.int32).at[0, 0].set(jnp.array([12, 6, 0, 400]))
    found = np.asarray(bilinear(image, from_y, from_x, 1.0, 2))[0, 0, :, 0]
    np.testing.assert_array_equal(found, np.array([11, 3.5, 8, 16], np.float32) / 16)


@pytest.mark.parametrize("fill", [0, 200])
def test_nearest_is_that_of_pillow(fill):
    """By matrices of quarters, which are exact in both, on sides of which no place is in doubt."""
    image = np.random.RandomState(0).randint(0, 256, (5, 10, 14, 3)).astype(np.uint8)
    matrices = [
        (1, 0, 0, 0, 1, 0),
        (1, 0, 2.25, 0, 1, -3.25),
        (0, 1, 0.25, -1, 0, 9.25),
        (1, 0.25, 0.125, 0.75, 1.25, -0.125),
        (0.5, 0, 0.125, 0, 2, 0.125),
    ]
    fixed = jnp.array([[round(number * 8) for number in matrix] for matrix in matrices], jnp.int32)
    found = np.asarray(nearest(jnp.asarray(image), fixed, fill, 3))
    assert found.dtype == np.uint8
    for one, result, (yy, yx, y1, xy, xx, x1) in zip(image, found, matrices, strict=True):
        expected = Image.fromarray(one).transform(
            (14, 10), Image.Transform.AFFINE, (xx, xy, x1, yx, yy, y1), fillcolor=(fill,) * 3
        )
        np.testing.assert_array_equal(result, np.asarray(expected))
