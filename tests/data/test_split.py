import numpy as np

from jaxtrain.data import ArraySplit, Subset

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
