import importlib.metadata

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from jaxtrain.data import resize as resizing
from jaxtrain.data.resize import resize

sides = st.integers(1, 120)
shapes = st.tuples(sides, sides)
ends = st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted)


def picture(height, width, channels=3, seed=0):
    return np.random.RandomState(seed).randint(0, 256, (height, width, channels)).astype(np.uint8)


def by_pillow(image, wanted, box=None):
    planes = [
        np.asarray(Image.fromarray(plane).resize(wanted[::-1], Image.Resampling.BILINEAR, box=box))
        for plane in np.moveaxis(image, 2, 0)
    ]
    return np.stack(planes, axis=2)


def differ(found, expected):
    assert found.dtype == np.uint8
    assert found.shape == expected.shape
    return np.abs(found.astype(int) - expected).max()


@settings(deadline=None, max_examples=60)
@given(size=shapes, wanted=shapes, channels=st.integers(1, 5))
def test_it_is_pillows_to_within_roundings(size, wanted, channels):
    image = picture(*size, channels)
    assert differ(resize(image, wanted), by_pillow(image, wanted)) <= 2


@settings(deadline=None, max_examples=60)
@example(size=(28, 12), wanted=(28, 12), across=[0.2, 1.0], down=[0.2, 1.0])
@given(size=shapes, wanted=shapes, across=ends, down=ends)
def test_so_is_a_part(size, wanted, across, down):
    """What lies outside of it is read as far as the filter reaches, and no further."""
    image = picture(*size)
    left, right = (end * size[1] for end in across)
    top, bottom = (end * size[0] for end in down)
    if right - left < 0.01 or bottom - top < 0.01:
        return
    box = (left, top, right, bottom)
    assert differ(resize(image, wanted, box), by_pillow(image, wanted, box)) <= 2


@pytest.mark.parametrize("wanted", [(224, 224), (90, 300), (400, 64)])
def test_most_pixels_are_pillows(wanted):
    image = picture(270, 340)
    found, expected = resize(image, wanted).astype(int), by_pillow(image, wanted)
    assert np.abs(found - expected).max() <= 1
    assert np.abs(found - expected).mean() < 0.3


def test_the_name_changes_with_the_version():
    """Another version may round in another way; caches of pixels go by the name."""
    package = "Pillow" if resizing.simd is None else "cykooz-resizer"
    assert resizing.NAME.split(" ") == [package, importlib.metadata.version(package)]


def test_without_simd_it_is_pillows(monkeypatch):
    monkeypatch.setattr(resizing, "simd", None)
    image = picture(50, 60)
    assert np.array_equal(resize(image, (20, 90)), by_pillow(image, (20, 90)))
    box = (3.25, 10.0, 59.5, 40.75)
    assert np.array_equal(resize(image, (20, 90), box), by_pillow(image, (20, 90), box))


@pytest.mark.skipif(resizing.simd is None, reason="cykooz-resizer is not installed")
def test_the_instructions_of_the_cpu_change_nothing():
    image, resizer = picture(70, 50), resizing._local.resizer
    usual = resizer.cpu_extensions
    found = []
    for kind in resizing.simd.CpuExtensions:
        resizer.cpu_extensions = kind
        found.append(resize(image, (31, 47)))
    resizer.cpu_extensions = usual
    assert all(np.array_equal(each, found[0]) for each in found)
