import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from jaxtrain.data import bits
from jaxtrain.data.crops import (
    DRAWS,
    RandomResized,
    center,
    center_box,
    random_box,
    random_resized,
)

sides = st.integers(1, 700)
shapes = st.tuples(sides, sides)
shares = st.floats(0.01, 1)
draws = st.lists(st.floats(0, 1, exclude_max=True), min_size=DRAWS, max_size=DRAWS)


def picture(height, width, channels=3, seed=0):
    return np.random.RandomState(seed).randint(0, 256, (height, width, channels)).astype(np.uint8)


def resize(image, height, width):
    resized = Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(resized)


@pytest.mark.parametrize(
    ("size", "wanted", "share", "full"),
    [
        # torchvision: the shorter side to 256, the longer one to int(256 * 500 / 375) = 341
        ((375, 500), (224, 224), 0.875, (256, 341)),
        ((500, 375), (224, 224), 0.875, (341, 256)),
        ((300, 300), (224, 224), 0.875, (256, 256)),
        ((28, 40), (28, 28), 1.0, (28, 40)),
        ((40, 40), (32, 32), 0.875, (37, 37)),  # 36.57 rounded
        ((20, 30), (64, 64), 1.0, (64, 96)),  # smaller than the crop: enlarged
        ((100, 100), (30, 60), 0.5, (120, 120)),  # 60 x 120 must be covered
        ((300, 100), (30, 60), 0.5, (360, 120)),
        ((100, 300), (30, 60), 0.5, (60, 180)),
    ],
)
def test_the_centre_is_that_of_torchvisions_resize_and_crop(size, wanted, share, full):
    image = picture(*size)
    top, left = (round((f - w) / 2) for f, w in zip(full, wanted, strict=True))
    assert center_box(size, wanted, share) == pytest.approx(
        (
            left * size[1] / full[1],
            top * size[0] / full[0],
            (left + wanted[1]) * size[1] / full[1],
            (top + wanted[0]) * size[0] / full[0],
        )
    )
    expected = resize(image, *full)[top : top + wanted[0], left : left + wanted[1]]
    found = center(image, wanted, share)
    assert found.dtype == np.uint8
    assert found.shape == (*wanted, 3)
    # Equal but for ties: both passes, across and down, round to whole numbers.
    difference = abs(found.astype(int) - expected)
    assert difference.max() <= 2
    assert difference.mean() < 0.3


def test_shrinking_takes_means():
    stripes = np.zeros((64, 64, 1), np.uint8)
    stripes[::2] = 255
    inside = center(stripes, (8, 8), 1.0)[1:-1]
    assert np.ptp(inside) <= 1
    assert inside.mean() == pytest.approx(127.5, abs=1)


def test_an_image_that_fits_is_left_alone():
    image = picture(28, 30)
    assert center(image, (28, 30), 1.0) is image
    assert center(image, (28, 30), 0.9) is not image
    assert center(image, (28, 28), 1.0).shape == (28, 28, 3)
    assert np.array_equal(center(image, (28, 28), 1.0), image[:, 1:29])


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (17, 9), (9, 17)])
def test_channels_are_independent_and_any_size_works(channels, size):
    image = picture(*size, channels)
    whole = [0.0] * DRAWS
    for make in (
        lambda image: center(image, (12, 10), 0.8),
        lambda image: random_resized(image, (12, 10), RandomResized(), whole),
    ):
        found = make(image)
        assert found.shape == (12, 10, channels)
        for channel in range(channels):
            assert np.array_equal(found[..., [channel]], make(image[..., [channel]]))


def test_a_picture_of_one_value_stays_so():
    for channels in (1, 3, 4):
        flat = np.full((50, 31, channels), 201, np.uint8)
        assert np.all(center(flat, (24, 24), 0.9) == 201)
        assert np.all(random_resized(flat, (24, 24), RandomResized(), [0.5] * DRAWS) == 201)


@settings(deadline=None)
@given(size=shapes, wanted=shapes, share=shares)
def test_the_centre_is_inside_the_image_and_in_its_middle(size, wanted, share):
    height, width = size
    left, top, right, bottom = center_box(size, wanted, share)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    # What is kept of the side that limits is the share, but for the rounding to whole pixels.
    kept = max(
        (right - left) / width * round(wanted[1] / share) / wanted[1],
        (bottom - top) / height * round(wanted[0] / share) / wanted[0],
    )
    assert kept == pytest.approx(1)
    # Each pixel of the result spans as much across as down, but for that rounding.
    across, down = (right - left) / wanted[1], (bottom - top) / wanted[0]
    assert across == pytest.approx(down, rel=1 / min(wanted))
    # In the middle, to half a pixel of the result.
    assert abs(left + right - width) <= across * 1.001
    assert abs(top + bottom - height) <= down * 1.001


@settings(deadline=None, max_examples=30)
@given(size=shapes, wanted=st.tuples(st.integers(1, 50), st.integers(1, 50)), share=shares)
def test_every_centre_can_be_made(size, wanted, share):
    assert center(picture(*size, 1), wanted, share).shape == (*wanted, 1)


crops = st.builds(
    lambda areas, ratios: RandomResized(*sorted(areas), tuple(sorted(ratios))),
    st.tuples(st.floats(1e-9, 1), st.floats(1e-9, 1)),
    st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)),
)


@settings(deadline=None)
@given(size=shapes, crop=crops, draws=draws)
def test_a_random_part_is_inside_the_image(size, crop, draws):
    height, width = size
    left, top, right, bottom = random_box(size, crop, draws)
    assert all(type(edge) is int for edge in (left, top, right, bottom))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


def test_random_parts_are_torchvisions():
    """The formulas of RandomResizedCrop.get_params, by hand, for the first try."""
    area, ratio, down, across = 0.5, 0.75, 0.25, 0.9
    rest = [0.0] * (DRAWS - 4)
    wanted_area = 300 * 400 * (0.08 + 0.5 * 0.92)
    wanted_ratio = math.exp(math.log(3 / 4) + 0.75 * (math.log(4 / 3) - math.log(3 / 4)))
    width = round(math.sqrt(wanted_area * wanted_ratio))
    height = round(math.sqrt(wanted_area / wanted_ratio))
    assert (height, width) == (237, 274)
    left, top = int(0.9 * (400 - width + 1)), int(0.25 * (300 - height + 1))
    box = random_box((300, 400), RandomResized(), [area, ratio, down, across, *rest])
    assert box == (left, top, left + width, top + height)
    # The first try that fits: the image's own area fits only as the image's own shape.
    whole = [0.999999, 0.0, 0.0, 0.0]
    later = random_box((300, 400), RandomResized(), [*whole, area, ratio, down, across, *rest[4:]])
    assert later == box


@pytest.mark.parametrize(
    ("size", "box"),
    [
        ((1, 500), (249, 0, 250, 1)),  # as wide as 4 / 3 of its height
        ((500, 1), (0, 249, 1, 250)),
        ((30, 300), (130, 0, 170, 30)),
        ((300, 30), (0, 130, 30, 170)),
        ((30, 31), (0, 0, 31, 30)),
    ],
)
def test_where_no_try_fits_the_middle_is_taken(size, box):
    nothing = RandomResized(1.0, 1.0)
    assert random_box(size, nothing, [0.0, 0.0, 0.5, 0.5] * (DRAWS // 4)) == box


def test_random_parts_are_spread_as_they_should():
    crop = RandomResized(0.1, 0.5)
    boxes = [
        random_box((1000, 1000), crop, each)
        for each in bits.uniform(bits.words(bits.key(1), 4000), DRAWS).tolist()
    ]
    left, top, right, bottom = np.array(boxes).T
    areas = (right - left) * (bottom - top) / 1e6
    ratios = np.log((right - left) / (bottom - top)) / math.log(4 / 3)
    assert areas.min() > 0.099
    assert areas.max() < 0.501
    assert areas.mean() == pytest.approx(0.3, abs=0.01)
    assert abs(ratios).max() < 1.01
    assert ratios.mean() == pytest.approx(0, abs=0.05)
    assert ratios.std() == pytest.approx(1 / math.sqrt(3), abs=0.03)
    for start, end in ((left, right), (top, bottom)):
        places = start / (1000 - (end - start))
        assert places.mean() == pytest.approx(0.5, abs=0.03)
        assert places.std() == pytest.approx(1 / math.sqrt(12), abs=0.02)


def test_a_random_part_is_cut_and_then_resized_as_by_pillow():
    image = picture(61, 83)
    for seed in range(5):
        each = np.random.RandomState(seed).rand(DRAWS).tolist()
        left, top, right, bottom = random_box((61, 83), RandomResized(), each)
        expected = resize(image[top:bottom, left:right], 32, 24)
        found = random_resized(image, (32, 24), RandomResized(), each)
        assert np.abs(found.astype(int) - expected).max() <= 1


@pytest.mark.parametrize(
    "arguments",
    [(0.0,), (-0.1,), (0.5, 0.4), (0.5, 1.1), (0.1, 1.0, (0.0, 1.0)), (0.1, 1.0, (2.0, 1.0)),
     (0.1, 1.0, (1.0, 1e4))],
)  # fmt: skip
def test_parts_that_cannot_be_are_refused(arguments):
    with pytest.raises(ValueError, match="must be"):
        RandomResized(*arguments)


@given(
    sides=st.tuples(st.integers(1, 500), st.integers(1, 500)),
    areas=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(sorted),
    ratio=st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)).map(sorted),
)
def test_parts_of_an_image_that_is_large_enough_are_not_enlarged(sides, areas, ratio):
    crop = RandomResized(*areas, tuple(ratio))
    height, width = crop.enough(sides)
    for shape in ratio:
        part = math.sqrt(areas[0] * height * width * shape)
        assert part >= 0.999 * sides[1]
        assert part / shape >= 0.999 * sides[0]
    assert math.sqrt(sum(areas) / 2 * height * width) >= 0.999 * 2 * max(sides)
