import io
import os
from concurrent import futures

import numpy as np
from PIL import Image
from tfds_sets import examples, pixels, png, prepare

from jaxtrain.config.schema import DataConfig
from jaxtrain.data import SOURCES, silent
from jaxtrain.data.tfds import split


def test_images_are_decoded_as_tensorflow_does(tmp_path):
    transparent = np.dstack([pixels(2), np.full((4, 5), 7, np.uint8)])
    turned, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels(3)).save(turned, "PNG", exif=exif)
    encoded = [
        png(pixels(1)),
        png(transparent),
        turned.getvalue(),
        png(np.full((4, 5), 512, np.uint16)),
    ]
    shard = [{"image": each, "label": 0} for each in encoded]
    folder = prepare(tmp_path / "tiny/1.0.0", "tfrecord", {"train": [shard]})
    opened = SOURCES["tfds"](DataConfig(source="tfds", path=str(folder)), silent).open("train")
    expected = [pixels(1), pixels(2), pixels(3), np.full((4, 5, 3), 2)]
    assert np.array_equal([opened.decode(index) for index in range(4)], expected)


def test_few_files_stay_open(tmp_path, monkeypatch):
    monkeypatch.setattr(split, "open_files", lambda: 2)
    shards = [examples(range(start, start + 5)) for start in range(0, 40, 5)]
    folder = prepare(tmp_path / "tiny/1.0.0", "tfrecord", {"train": shards})
    opened = SOURCES["tfds"](DataConfig(source="tfds", path=str(folder)), silent).open("train")
    before = len(os.listdir("/proc/self/fd"))
    order = np.random.RandomState(0).randint(0, 40, 2000).tolist()
    with futures.ThreadPoolExecutor(8) as pool:
        images = list(pool.map(opened.decode, order))
    assert np.array_equal(images, [pixels(number) for number in order])
    assert len(os.listdir("/proc/self/fd")) <= before + 2
