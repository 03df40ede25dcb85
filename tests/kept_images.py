"""Images that are kept on disk, as tests want them: few, and each says which one it is."""

import time

import numpy as np

from jaxtrain.data import silent
from jaxtrain.data.cache.disk import Disk
from jaxtrain.data.split import Identity, RawSplit

COUNT = 40


class Pictures(RawSplit):
    """Images that show their number and their version."""

    name, channels, image_shape, origin = "train", 3, None, "here"

    def __init__(self, names=range(COUNT), versions=None, seconds=0.0):
        self.names = list(names)
        self.size = len(self.names)
        self.versions = versions or {}
        self.labels = np.zeros(self.size, np.int32)
        self.decoded = []
        self.seconds = seconds

    def identities(self):
        return [
            Identity(f"{name}.jpg".encode(), str(self.versions.get(name, 0)).encode())
            for name in self.names
        ]

    def decode(self, index, enough=None):
        self.decoded.append(index)
        time.sleep(self.seconds)
        name = self.names[index]
        shape = (1 + name % 4, 2 + name % 3, 3)
        return np.full(shape, (name + 100 * self.versions.get(name, 0)) % 256, np.uint8)

    fingerprint = "0"


def kept(folder, raw, how="whole", shape=None):
    return Disk(folder, raw.decode, raw, how=how, shape=shape)


def prepared(folder, raw, **options):
    images = kept(folder, raw, **options)
    images.prepare(silent, None)
    return images


def check(images, raw):
    """All images are as they are when they are made."""
    before = len(raw.decoded)
    for index in range(raw.size):
        found = images.get(index)
        assert not found.flags.writeable
        raw_before = list(raw.decoded)
        assert np.array_equal(found, raw.decode(index))
        raw.decoded = raw_before
    assert len(raw.decoded) == before, "some were made again"


def names(folder):
    return sorted(path.name for path in folder.iterdir())
