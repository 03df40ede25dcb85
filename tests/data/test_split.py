import threading

import numpy as np
import pytest

from jaxtrain.data import ArraySplit, Subset
from jaxtrain.errors import DataError

IMAGES = np.arange(6 * 2 * 3, dtype=np.uint8).reshape(6, 2, 3, 1)
LABELS = np.array([0, 1, 2, 0, 1, 2], np.int32)


def array_split(images=IMAGES, labels=LABELS, name="train"):
    return ArraySplit(name, images, labels, "here")


def test_array_split():
    split = array_split()
    assert (split.name, split.size, split.origin) == ("train", 6, "here")
    assert split.image_shape == (2, 3, 1)
    assert split.nbytes == 36
    assert split.images is IMAGES
    assert np.array_equal(split.read(np.array([4, 4, 0])), IMAGES[[4, 4, 0]])


def test_subset():
    part = Subset("part", array_split(), np.array([5, 1, 3]))
    assert (part.name, part.size, part.origin) == ("part", 3, "here")
    assert part.image_shape == (2, 3, 1)
    assert part.nbytes == 18
    assert part.labels.tolist() == [2, 1, 0]
    assert part.labels.dtype == np.int32
    assert np.array_equal(part.images, IMAGES[[5, 1, 3]])
    assert np.array_equal(part.read(np.array([2, 0])), IMAGES[[3, 5]])


class Seeded(ArraySplit):
    """Adds the seed to the image."""

    random = True

    def read(self, indices, row_seeds=None):
        return super().read(indices) + row_seeds.astype(np.uint8).reshape(-1, 1, 1, 1)


def test_a_subset_is_as_random_as_its_base():
    rows = np.array([5, 1, 3])
    assert not array_split().random
    assert not Subset("part", array_split(), rows).random
    part = Subset("part", Seeded("train", IMAGES, LABELS, "here"), rows)
    assert part.random
    found = part.read(np.array([2, 0]), np.array([7, 9], np.uint64))
    assert np.array_equal(found, IMAGES[[3, 5]] + np.array([7, 9], np.uint8).reshape(2, 1, 1, 1))


class Counted(ArraySplit):
    """Notes what is read, and with which thread."""

    def __init__(self, count):
        images = np.arange(count * 4, dtype=np.uint32).astype(np.uint8).reshape(count, 2, 2, 1)
        super().__init__("train", images, np.zeros(count, np.int32), "here")
        self.reads = []

    def read(self, indices, row_seeds=None):
        self.reads.append((threading.get_ident(), indices.tolist()))
        if 777 in indices:
            raise DataError("shard 3: cut short")
        return super().read(indices)


@pytest.mark.parametrize("count", [1, 64, 65, 700])
def test_all_images_are_read_in_threads_each_once(count):
    split = Counted(count)
    rows = np.arange(count)[::-1].copy()
    part = Subset("part", split, rows)
    assert np.array_equal(part.images, split.images[::-1])
    assert sorted(index for _, read in split.reads for index in read) == list(range(count))
    assert threading.get_ident() not in {thread for thread, _ in split.reads}


def test_a_failure_is_raised_where_all_images_are_read():
    with pytest.raises(DataError, match="shard 3: cut short"):
        _ = Subset("part", Counted(1000), np.arange(1000)).images


def test_fingerprint_changes_with_any_of_image_label_order_and_shape():
    changed = IMAGES.copy()
    changed[3, 1, 1, 0] ^= 1
    labels = LABELS.copy()
    labels[5] = 0
    splits = [
        array_split(),
        array_split(images=changed),
        array_split(labels=labels),
        array_split(IMAGES[::-1], LABELS[::-1]),
        array_split(images=IMAGES.reshape(6, 3, 2, 1)),
        Subset("a", array_split(), np.array([0, 1, 2])),
        Subset("a", array_split(), np.array([0, 2, 1])),
        Subset("a", array_split(images=changed), np.array([0, 1, 2])),
    ]
    prints = [split.fingerprint for split in splits]
    assert len(set(prints)) == len(splits)
    assert all(len(bytes.fromhex(each)) == 4 for each in prints)


def test_fingerprint_depends_on_nothing_else():
    strided = np.repeat(IMAGES, 2, axis=0)[::2]
    assert not strided.flags.c_contiguous
    same = array_split(images=strided, name="other")
    assert same.fingerprint == array_split().fingerprint == "d007a98c"


@pytest.mark.parametrize("dtype", ["f2", "f4", ">f4", "f8", "i8", "u1", "?"])
def test_features_are_float32_whatever_the_array_holds(dtype):
    values = (np.arange(12).reshape(6, 2) % 5).astype(dtype)
    split = array_split(values)
    assert split.image_shape == (2,)
    assert split.dtype == np.float32
    assert split.nbytes == 6 * 2 * 4
    for found in (split.read(np.array([4, 0])), Subset("a", split, np.array([4, 0])).images):
        assert found.dtype == np.float32
        assert found.dtype.isnative
        assert np.array_equal(found, values[[4, 0]].astype(np.float32))
    assert np.array_equal(split.images, values.astype(np.float32))
    assert split.fingerprint == array_split(values.astype(np.float32)).fingerprint
    changed = values.copy()
    changed[5, 1] = not changed[5, 1]
    assert split.fingerprint != array_split(changed).fingerprint


def test_the_fingerprint_of_a_long_array_sees_all_of_it():
    values = np.zeros((3000, 2), np.float32)
    labels = np.zeros(3000, np.int32)
    prints = {array_split(values, labels).fingerprint}
    for row in (0, 1023, 1024, 2999):
        changed = values.copy()
        changed[row, 1] = 1
        prints.add(array_split(changed, labels).fingerprint)
    assert len(prints) == 5
