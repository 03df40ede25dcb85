import numpy as np

from jaxtrain.data import ArraySplit
from jaxtrain.data.arrays.joined import Joined


def part(first, size):
    values = np.arange(first, first + size)
    return ArraySplit("a", values.reshape(-1, 1).astype(float), values.astype(np.int32), "here")


def test_the_parts_follow_one_another():
    joined = Joined("a+b", [part(0, 3), part(3, 1), part(4, 5)])
    assert (joined.name, joined.size, joined.image_shape) == ("a+b", 9, (1,))
    assert joined.labels.tolist() == list(range(9))
    assert joined.images.ravel().tolist() == list(range(9))
    indices = np.array([8, 0, 3, 3, 2, 4])
    assert joined.read(indices).ravel().tolist() == indices.tolist()
    assert joined.read(indices).dtype == np.float32
    assert joined.read(indices[:0]).shape == (0, 1)
    other = Joined("a+b", [part(3, 1), part(0, 3), part(4, 5)])
    assert joined.fingerprint != other.fingerprint
