import io

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from jaxtrain.data import decode as decoding
from jaxtrain.data import jpeg
from jaxtrain.data.decode import decode, decode_part
from jaxtrain.errors import DataError

ORIENTATION = 0x0112
SUBSAMPLINGS = ("4:4:4", "4:2:2", "4:2:0")

sides = st.tuples(st.integers(1, 90), st.integers(1, 90))
files = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["RGB", "RGB", "L"]),
        "quality": st.integers(1, 100),
        "subsampling": st.sampled_from(SUBSAMPLINGS),
        "progressive": st.booleans(),
        "orientation": st.sampled_from([None, *range(1, 9)]),
    }
)


def picture(height, width, seed=0):
    """Smooth, with noise on it."""
    random = np.random.RandomState(seed)
    small = Image.fromarray(random.randint(0, 256, (5, 6, 3)).astype(np.uint8))
    smooth = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC))
    return np.clip(smooth + random.randint(-9, 10, smooth.shape), 0, 255).astype(np.uint8)


def jpeg_file(size, mode="RGB", orientation=None, **options):
    image = Image.fromarray(picture(*size)).convert(mode)
    exif = Image.Exif()
    if orientation is not None:
        exif[ORIENTATION] = orientation
    content = io.BytesIO()
    image.save(content, "JPEG", exif=exif, **options)
    return content.getvalue()


def by_pillow(encoded, channels, **options):
    """What `decode` makes of a file where it is left to Pillow."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(jpeg, "header", lambda encoded: None)
        return decode(encoded, channels, **options)


@settings(deadline=None, max_examples=60)
@given(size=sides, options=files, channels=st.sampled_from([1, 3, 4]), upright=st.booleans())
def test_the_pixels_are_those_of_pillow(size, options, channels, upright):
    encoded = jpeg_file(size, **options)
    assert jpeg.header(encoded).sides == size
    found = decode(encoded, channels, upright=upright)
    assert np.array_equal(found, by_pillow(encoded, channels, upright=upright))


def parts():
    """Shares of the sides where a part begins and ends."""
    return st.tuples(*(st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted) for _ in range(2)))


def chosen(shares, size):
    (left, right), (top, bottom) = shares
    height, width = size
    left, top = min(int(left * width), width - 1), min(int(top * height), height - 1)
    return left, top, max(int(right * width), left + 1), max(int(bottom * height), top + 1)


@settings(deadline=None, max_examples=100)
@given(
    size=st.tuples(st.integers(1, 140), st.integers(1, 60)),
    shares=parts(),
    options=files,
    restart=st.sampled_from([0, 1, 3]),
    enough=st.sampled_from([None, (20, 20)]),
)
def test_a_part_is_a_part_of_the_whole(size, shares, options, restart, enough):
    encoded = jpeg_file(size, restart_marker_rows=restart, **options)
    channels = 1 if options["mode"] == "L" else 3
    whole = decode(encoded, channels, enough=enough)
    left, top, right, bottom = chosen(shares, whole.shape[:2])
    found = decode_part(encoded, channels, lambda size: chosen(shares, size), enough=enough)
    assert np.array_equal(found, whole[top:bottom, left:right])


@pytest.mark.parametrize(
    ("subsampling", "beyond"), [("444", 1), ("422", 1), ("420", 2), ("440", 2), ("411", 1)]
)
def test_no_more_rows_than_needed_are_decoded(subsampling, beyond):
    image = np.random.default_rng(0).integers(0, 256, (200, 50, 3), np.uint8)
    encoded = simplejpeg.encode_jpeg(image, colorsubsampling=subsampling)
    header, whole = jpeg.header(encoded), decode(encoded, 3)
    for rows in range(1, 201):
        found = jpeg.decode_top(encoded, header, rows)
        assert len(found) == min(rows + beyond, 200)
        assert np.array_equal(found[:rows], whole[:rows])


@pytest.mark.parametrize(
    "options", [{"progressive": True}, {"orientation": 6}, {"mode": "CMYK"}], ids=str
)
def test_what_cannot_be_parted_is_decoded_as_a_whole(options):
    encoded = jpeg_file((40, 60), **options)
    whole = decode(encoded, 3)
    found = decode_part(encoded, 3, lambda size: (3, 5, size[1] - 1, 20))
    assert np.array_equal(found, whole[5:20, 3:-1])


@settings(deadline=None, max_examples=100)
@given(at=st.floats(0.3, 1), noise=st.binary(min_size=1, max_size=60), rows=st.integers(1, 64))
def test_damage_that_pillow_makes_good_is_the_same_in_a_part(at, noise, rows):
    encoded = jpeg_file((64, 80), quality=90)
    start = int(at * len(encoded))
    damaged = encoded[:start] + noise + encoded[start + len(noise) :]
    try:
        whole = decode(damaged, 3)
    except DataError:
        return
    found = decode_part(damaged, 3, lambda size: (0, 0, size[1], min(rows, size[0])))
    assert np.array_equal(found, whole[:rows])


@pytest.mark.parametrize("encoded", [b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"text"])
def test_what_is_no_jpeg_has_no_header(encoded):
    assert jpeg.header(encoded) is None


def test_colours_that_are_stored_as_they_are():
    encoded = jpeg_file((30, 41), keep_rgb=True)
    assert b"Adobe" in encoded
    assert np.array_equal(decode(encoded, 3), by_pillow(encoded, 3))
    assert decode(encoded, 3, enough=(15, 20)).shape == (15, 21, 3)


def test_cmyk_is_left_to_pillow():
    content = io.BytesIO()
    Image.fromarray(picture(9, 14)).convert("CMYK").save(content, "JPEG")
    assert jpeg.header(content.getvalue()) is None
    assert decode(content.getvalue(), 3, enough=(1, 1)).shape == (9, 14, 3)


@settings(deadline=None, max_examples=40)
@given(size=sides, enough=sides, options=files)
def test_it_comes_as_small_as_is_enough(size, enough, options):
    encoded = jpeg_file(size, **options)
    whole = decode(encoded, 3)
    found = decode(encoded, 3, enough=enough)
    shapes = [tuple(-(-side // by) for side in whole.shape[:2]) for by in (8, 4, 2)]
    fitting = [shape for shape in shapes if shape[0] >= enough[0] and shape[1] >= enough[1]]
    assert found.shape[:2] == (fitting[0] if fitting else whole.shape[:2])
    if not fitting:
        assert np.array_equal(found, whole)


@pytest.mark.parametrize("orientation", [None, 3, 6])
@pytest.mark.parametrize("by", [2, 4, 8])
def test_what_is_smaller_shows_the_same(by, orientation):
    random = np.random.RandomState(1)
    coarse = Image.fromarray(random.randint(0, 256, (3, 4, 3)).astype(np.uint8))
    image = coarse.resize((640, 480), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    if orientation is not None:
        exif[ORIENTATION] = orientation
    content = io.BytesIO()
    image.save(content, "JPEG", quality=95, exif=exif)
    whole = decode(content.getvalue(), 3)
    enough = tuple(side // by for side in whole.shape[:2])
    found = decode(content.getvalue(), 3, enough=enough)
    assert found.shape[:2] == enough
    expected = np.asarray(Image.fromarray(whole).reduce(by)).astype(int)
    assert np.abs(found - expected).mean() < 1


def test_a_png_stays_as_it_is():
    content = io.BytesIO()
    Image.fromarray(picture(40, 60)).save(content, "PNG")
    assert decode(content.getvalue(), 3, enough=(1, 1)).shape == (40, 60, 3)


@pytest.mark.parametrize("enough", [None, (8, 8)])
@pytest.mark.parametrize("tail", [b"", bytes(4000)], ids=["cut", "zeros"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_half_files_are_refused(share, tail, enough):
    """Also those that were given their full length before they came: Pillow makes them grey."""
    encoded = jpeg_file((200, 300), quality=90)
    half = encoded[: int(share * len(encoded))] + tail
    with pytest.raises(DataError, match=r"^the image is broken: "):
        decode(half, 3, enough=enough)


def test_needless_bytes_are_no_damage():
    encoded = jpeg_file((20, 30))
    filled = encoded[:-2] + bytes(40) + encoded[-2:]
    with pytest.MonkeyPatch.context() as patched:
        seen = []
        pillows = decoding._opened
        patched.setattr(decoding, "_opened", lambda x: seen.append(x) or pillows(x))
        assert np.array_equal(decode(filled, 3, enough=(1, 1)), decode(encoded, 3))
        assert seen == [filled]  # that libjpeg warns of them has Pillow look at it
    assert np.array_equal(decode(encoded + b"more", 3), decode(encoded, 3))


@settings(deadline=None, max_examples=60)
@given(at=st.floats(0.02, 1), noise=st.binary(min_size=1, max_size=60))
def test_damage_is_refused_or_what_pillow_makes_of_it(at, noise):
    encoded = jpeg_file((64, 80))
    start = int(at * len(encoded))
    damaged = encoded[:start] + noise + encoded[start + len(noise) :]
    try:
        found = decode(damaged, 3)
    except DataError:
        return
    assert np.array_equal(found, by_pillow(damaged, 3))
