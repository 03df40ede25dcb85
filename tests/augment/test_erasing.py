"""Covered rectangles against the papers' own definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.augment.draws import uniform
from jaxtrain.augment.erasing import Cutout, RandomErasing, covered
from jaxtrain.keys import step_key

KEY = step_key(2, 9, "augment")


def rows(count: int) -> jax.Array:
    return jnp.arange(count, dtype=jnp.int32)


def erased(operation, count: int, height: int, width: int) -> np.ndarray:
    """Bool `[count, height, width]`: what is covered of white images."""
    image = jnp.ones((count, height, width, 2), jnp.float32)
    found = np.asarray(jax.jit(operation)(KEY, image, rows(count)))
    assert (found[..., 0] == found[..., 1]).all()
    return found[..., 0] == operation.fill


def rectangles(mask: np.ndarray) -> np.ndarray:
    """(top, left, height, width) of each mask's one full rectangle; `[count, 4]`."""
    found = []
    for one in mask:
        y, x = np.nonzero(one)
        height, width = np.ptp(y) + 1, np.ptp(x) + 1
        assert one.sum() == height * width
        found.append((y.min(), x.min(), height, width))
    return np.array(found)


@pytest.mark.parametrize(
    ("corner", "size", "inside"),
    [
        ((1, 2), (2, 3), np.s_[1:3, 2:5]),
        ((-1, -2), (3, 3), np.s_[0:2, 0:1]),
        ((3, 4), (9, 9), np.s_[3:, 4:]),
        ((2, 2), (0, 3), np.s_[0:0, 0:0]),
        ((0, 0), (4, 6), np.s_[:, :]),
    ],
)
def test_covered_is_a_rectangle(corner, size, inside):
    image = np.random.RandomState(0).rand(1, 4, 6, 3).astype(np.float32)
    expected = image.copy()
    expected[0][inside] = 0.25
    place = (jnp.array([corner], jnp.int32), jnp.array([size], jnp.int32))
    np.testing.assert_array_equal(covered(jnp.asarray(image), *place, 0.25), expected)


@pytest.mark.parametrize("size", [2, 8])
def test_cutout_is_that_of_the_paper(size):
    """The code of its authors, which is for even sizes, at the centres that are drawn."""
    height, width, count = 12, 9, 300
    mask = erased(Cutout(size, fill=0.5), count, height, width)
    centres = (np.asarray(uniform(KEY, rows(count), 2)) * [height, width]).astype(int)
    for one, (y, x) in zip(mask, centres, strict=True):
        expected = np.zeros((height, width), bool)
        top, bottom = np.clip([y - size // 2, y + size // 2], 0, height)
        left, right = np.clip([x - size // 2, x + size // 2], 0, width)
        expected[top:bottom, left:right] = True
        np.testing.assert_array_equal(one, expected)
    assert {int(y) for y in centres[:, 0]} == set(range(height))
    assert {int(x) for x in centres[:, 1]} == set(range(width))


def test_cutout_of_an_odd_size_is_centred():
    mask = erased(Cutout(3), 200, 7, 7)
    sizes = mask.sum(axis=(1, 2))
    assert set(sizes.tolist()) == {4, 6, 9}
    whole = rectangles(mask[sizes == 9])
    assert set(whole[:, 0].tolist()) == {0, 1, 2, 3, 4}


def test_random_erasing_takes_its_share_of_the_images():
    count = 1000
    mask = erased(RandomErasing(p=0.25), count, 20, 20)
    assert 0.20 < mask.any(axis=(1, 2)).mean() < 0.30
    assert not erased(RandomErasing(p=0), 50, 8, 8).any()
    assert erased(RandomErasing(p=1), 50, 8, 8).any(axis=(1, 2)).all()


def test_random_erasing_draws_area_ratio_and_place_as_the_paper():
    count, height, width = 1500, 100, 80
    operation = RandomErasing(p=1.0, scale=(0.02, 0.2), ratio=(0.5, 2.0))
    top, left, tall, wide = rectangles(erased(operation, count, height, width)).T
    areas = tall * wide / (height * width)
    assert 0.018 < areas.min() < 0.03
    assert 0.18 < areas.max() < 0.21
    assert abs(areas.mean() - 0.11) < 0.005
    logs = np.log(tall / wide) / np.log(2)
    assert -1.1 < logs.min() < -0.9
    assert 0.9 < logs.max() < 1.1
    assert abs(logs.mean()) < 0.06
    assert (top + tall <= height).all()
    assert (left + wide <= width).all()
    for place, room in ((top, height - tall), (left, width - wide)):
        share = place / room
        assert share.min() < 0.02
        assert share.max() > 0.98
        assert abs(share.mean() - 0.5) < 0.03


def test_random_erasing_tries_again_where_a_rectangle_does_not_fit():
    """Of flat images only a few shapes fit; without further tries most would stay whole."""
    mask = erased(RandomErasing(p=1.0, scale=(0.1, 0.1), ratio=(0.3, 3.3)), 400, 8, 200)
    share = mask.any(axis=(1, 2)).mean()
    assert share > 0.5
    none = RandomErasing(p=1.0, scale=(0.5, 0.5), ratio=(50.0, 100.0))
    assert not erased(none, 50, 10, 10).any()
