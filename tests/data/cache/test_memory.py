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


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Sets what a machine of 4,096,000 bytes says of this process's memory."""
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "sys")

    def limited(groups, limits):
        (tmp_path / "cgroup").write_text(groups)
        for place, limit in limits.items():
            path = tmp_path / "sys" / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{limit}\n")

    return limited


V1 = "9:name=systemd:/a/b\n4:cpu,memory:/slurm/uid_7/job_1/step_0\n1:cpuset:/c\n"
V2 = "0::/user.slice/run-1.scope\n"
JOB = "memory/slurm/uid_7/job_1"


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("", {}, 4_096_000),
        (V2, {}, 4_096_000),
        # A container, whose own group is the root for it.
        ("0::/\n", {"memory.max": 400_000}, 400_000),
        ("0::/\n", {"memory.max": "max"}, 4_096_000),
        ("0::/\n", {"memory.max": 2**63}, 4_096_000),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": 400_000}, 400_000),
        # A container that sees the machine's names of groups, but only its own files.
        ("4:memory:/docker/1\n", {"memory/memory.limit_in_bytes": 400_000}, 400_000),
        ("0::/../other\n", {"memory.max": 400_000}, 400_000),
        # A job: its own group is limited, or one that it is in.
        (V2, {"user.slice/run-1.scope/memory.max": 400_000}, 400_000),
        (V2, {"user.slice/run-1.scope/memory.max": "max", "user.slice/memory.max": 8}, 8),
        (V1, {f"{JOB}/step_0/memory.limit_in_bytes": 400_000}, 400_000),
        (
            V1,
            {
                f"{JOB}/step_0/memory.limit_in_bytes": 2**63 - 4096,
                f"{JOB}/memory.limit_in_bytes": 400_000,
                "memory/slurm/memory.limit_in_bytes": 500_000,
            },
            400_000,
        ),
        (V1 + V2, {f"{JOB}/memory.limit_in_bytes": 400_000, "user.slice/memory.max": 80}, 80),
        # Of other groups, and of other resources than memory.
        (V2, {"user.slice/run-2.scope/memory.max": 400_000}, 4_096_000),
        (V1, {"memory/a/b/memory.limit_in_bytes": 8, "memory/c/memory.max": 8}, 4_096_000),
    ],
)
def test_a_quarter_of_the_memory(machine, groups, limits, expected):
    """Of the machine's, or of what the container or the job may use."""
    machine(groups, limits)
    assert memory.memory_limit() == expected // 4


def test_a_quarter_of_the_machines_memory_where_no_groups_are_known(machine):
    assert memory.memory_limit() == 1_024_000


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
