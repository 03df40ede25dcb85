import os
import threading
from concurrent import futures

import numpy as np
import pytest

from jaxtrain.data import silent
from jaxtrain.data.cache import memory

SHAPES = [(2, 3, 3), (5, 1, 3), (4, 4, 3)]


def image(index):
    return np.full(SHAPES[index % 3], index, np.uint8)


class Make:
    def __init__(self, make=image):
        self.made = []
        self._make = make

    def __call__(self, index):
        self.made.append(index)
        return self._make(index)


def test_a_quarter_of_the_memory(monkeypatch, tmp_path):
    """Of the machine's, or of the container's."""
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "_CGROUP_LIMITS", (str(tmp_path / "gone"), str(limit)))
    assert memory.memory_limit() == 1024000
    for text, expected in (("max\n", 1024000), ("400000\n", 100000), (f"{2**63}\n", 1024000)):
        limit.write_text(text)
        assert memory.memory_limit() == expected


@pytest.mark.parametrize(
    ("room", "kept"), [(1000, {0, 1, 2}), (66, {0, 2}), (40, {0, 1}), (17, {1})]
)
def test_what_is_read_first_is_kept_as_far_as_it_fits(room, kept):
    make = Make()
    images = memory.Some(make, 3, room)
    images.prepare(silent, None)
    for order in ([0, 2, 1] if room == 66 else [0, 1, 2], [2, 1, 0], [0, 1, 2]):
        for index in order:
            assert np.array_equal(images.get(index), image(index))
    assert {index for index in range(3) if make.made.count(index) == 1} == kept


def test_a_part_does_not_keep_the_whole():
    whole = np.zeros((1000, 1000, 3), np.uint8)
    images = memory.Some(lambda index: whole[:2, :2], 1, 1000)
    images.get(0)
    assert images.get(0).base is None
    assert images.get(0).nbytes == 12


@pytest.mark.parametrize("kind", ["all", "some"])
def test_threads_may_read_at_once(kind):
    shape = (4, 4, 3)
    make = Make(lambda index: np.full(shape, index % 256, np.uint8))
    images = memory.All(make, 300, shape) if kind == "all" else memory.Some(make, 300, 100 * 48)
    barrier = threading.Barrier(4)

    def read(seed):
        barrier.wait()
        for index in np.random.RandomState(seed).permutation(300).tolist():
            assert (images.get(index) == index % 256).all()

    with futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(read, [0, 0, 1, 2]))
    make.made.clear()
    for index in range(300):
        images.get(index)
    assert len(make.made) == (0 if kind == "all" else 200)
