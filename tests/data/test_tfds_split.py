import io
import os
from concurrent import futures

import numpy as np
import pytest
from PIL import Image
from tfds_sets import examples, pixels, prepare

from jaxtrain.config.schema import DataConfig
from jaxtrain.data import SOURCES
from jaxtrain.data.tfds import split
from jaxtrain.data.tfds.split import decode_image

RGB = np.kron(pixels(0, (3, 4, 3)), np.ones((8, 8, 1), np.uint8))
GREY = RGB[..., :1]


def encode(pixels, file_format, mode=None, **options):
    image = Image.fromarray(pixels.squeeze())
    content = io.BytesIO()
    (image if mode is None else image.convert(mode)).save(content, file_format, **options)
    return content.getvalue()


@pytest.mark.parametrize("file_format", ["PNG", "BMP"])
def test_exact_formats(file_format):
    assert np.array_equal(decode_image(encode(RGB, file_format), 3), RGB)
    assert np.array_equal(decode_image(encode(GREY, file_format), 1), GREY)


def test_jpeg_and_gif():
    jpeg = decode_image(encode(RGB, "JPEG", quality=100, subsampling=0), 3)
    assert np.abs(jpeg.astype(int) - RGB).max() <= 4
    assert np.array_equal(decode_image(encode(GREY, "GIF"), 1), GREY)


def test_channels_are_converted():
    grey = np.repeat(GREY, 3, 2)
    alpha = np.full_like(GREY, 7)
    assert np.array_equal(decode_image(encode(GREY, "PNG"), 3), grey)
    assert np.array_equal(decode_image(encode(np.dstack([RGB, alpha]), "PNG"), 3), RGB)
    assert np.array_equal(decode_image(encode(np.dstack([GREY, alpha]), "PNG"), 1), GREY)
    assert np.array_equal(decode_image(encode(RGB, "PNG"), 4), np.dstack([RGB, alpha * 0 + 255]))
    assert np.array_equal(decode_image(encode(grey, "PNG"), 1), GREY)
    bits = decode_image(encode(GREY, "PNG", "1"), 1)
    assert set(bits.flat) == {0, 255}
    cmyk = decode_image(encode(RGB, "JPEG", "CMYK", quality=100), 3)
    assert np.abs(cmyk.astype(int) - RGB).max() <= 8


def test_what_is_no_image_of_8_bits():
    with pytest.raises(ValueError, match=r"more than 8 bits \(Pillow's mode I"):
        decode_image(encode(GREY.astype(np.uint16), "PNG"), 1)
    with pytest.raises(ValueError, match="no PNG, JPEG, BMP or GIF"):
        decode_image(encode(GREY, "TIFF"), 1)


def test_few_files_stay_open(tmp_path, monkeypatch):
    monkeypatch.setattr(split, "_open_files", lambda: 2)
    shards = [examples(range(start, start + 5)) for start in range(0, 40, 5)]
    folder = prepare(tmp_path / "tiny/1.0.0", "tfrecord", {"train": shards})
    opened = SOURCES["tfds"](DataConfig(source="tfds", path=str(folder))).open("train")
    before = len(os.listdir("/proc/self/fd"))
    order = np.random.RandomState(0).randint(0, 40, 2000).tolist()
    with futures.ThreadPoolExecutor(8) as pool:
        images = list(pool.map(opened.decode, order))
    assert np.array_equal(images, [pixels(number) for number in order])
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_what_a_process_may_open(monkeypatch):
    for limit, expected in {1024: 256, 10**6: 4096, 2: 1, -1: 4096}.items():
        monkeypatch.setattr("resource.getrlimit", lambda _, limit=limit: (limit, limit))
        assert split._open_files() == expected
