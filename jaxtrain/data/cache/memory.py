"""Decoded images in this process's memory, each made at its first use."""

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from jaxtrain.data.split import Progress, in_threads

Make = Callable[[int], NDArray[np.uint8]]  # an example's index to its image `[h, w, C]`

# A run keeps two splits at most, and has to leave the other half of the memory to the model (on a
# CPU), the batches, and what reads the files.
_MEMORY_SHARE: Final = 4
# cgroups(7): those that this process is in, a line each, and where all are.
_OWN_GROUPS: Final = Path("/proc/self/cgroup")
_GROUPS: Final = Path("/sys/fs/cgroup")


class Images(Protocol):
    """Images by index. Threads may read at once."""

    def get(self, index: int) -> NDArray[np.uint8]:
        """One image `[h, w, C]`, not to be written to."""
        ...

    def find(self, index: int) -> NDArray[np.uint8] | None:
        """One image if it is kept."""
        ...

    def check_room(self, rows: NDArray[np.int64] | None, besides: int) -> int:
        """Refuses what there is no room for; as `Split.check_room`."""
        ...

    def prepare(self, progress: Progress, rows: NDArray[np.int64] | None) -> None:
        """Does ahead what can be done ahead; as `Split.prepare`."""
        ...


def memory_limit() -> int:
    """Bytes of decoded images that one split may keep: a quarter of what this process may use."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_group_limits()]) // _MEMORY_SHARE


def _group_limits() -> list[int]:
    """Bytes that this process's container or job may use, and all that it is part of."""
    try:
        lines = os.fsdecode(_OWN_GROUPS.read_bytes()).split("\n")[:-1]
    except OSError:  # another system
        return []
    limits = []
    for line in lines:
        number, resources, group = line.split(":", 2)
        if number == "0":  # version 2
            root, name = _GROUPS, "memory.max"
        elif "memory" in resources.split(","):
            root, name = _GROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        own = root / group.lstrip("/")
        # A container may see itself at the root, though its groups are named as on the machine.
        for place in (own, *own.parents[: len(own.parents) - len(root.parents)]):
            with contextlib.suppress(OSError, ValueError):  # not there, or "max"
                limits.append(int((place / name).read_text()))
    return limits


class _AtFirstUse:
    def check_room(self, rows: NDArray[np.int64] | None, besides: int) -> int:
        """None is needed on disk."""
        return 0

    def prepare(self, progress: Progress, rows: NDArray[np.int64] | None) -> None:
        """Nothing: what is read first takes no longer for it."""


class Remade(_AtFirstUse):
    """Images that are made whenever they are read.

    Args:
        make: makes one.
    """

    def __init__(self, make: Make):
        self._make = make

    def get(self, index: int) -> NDArray[np.uint8]:
        """Makes an image."""
        return self._make(index)

    def find(self, index: int) -> None:
        """None is kept."""


class All(_AtFirstUse):
    """Images of one shape, with room for all of them.

    Args:
        make: makes one.
        size: how many there are.
        shape: (height, width, channels).
    """

    def __init__(self, make: Make, size: int, shape: tuple[int, int, int]):
        self._make = make
        self._images = np.empty((size, *shape), np.uint8)  # takes memory where it is written
        self._there = np.zeros(size, bool)

    def get(self, index: int) -> NDArray[np.uint8]:
        """A view of one image."""
        if not self._there[index]:
            self._images[index] = self._make(index)
            self._there[index] = True  # last: another thread looks here first
        image: NDArray[np.uint8] = self._images[index]
        return image

    def find(self, index: int) -> NDArray[np.uint8] | None:
        """A view of one image, if it has been read before."""
        return self.get(index) if self._there[index] else None

    def read(self, indices: NDArray[np.integer]) -> NDArray[np.uint8]:
        """Copies of some, uint8 `[n, h, w, C]`."""
        self._fill(indices)
        images: NDArray[np.uint8] = self._images[indices]
        return images

    def all(self) -> NDArray[np.uint8]:
        """All of them, uint8 `[size, h, w, C]`; not copied."""
        in_threads(self._fill, len(self._images))
        return self._images

    def _fill(self, indices: NDArray[np.integer]) -> None:
        for index in indices[~self._there[indices]].tolist():
            self.get(index)


class Some(_AtFirstUse):
    """Images of any sizes, as many of them as there is room for: those that are read first.

    Args:
        make: makes one.
        size: how many there are.
        room: bytes that may be kept.
    """

    def __init__(self, make: Make, size: int, room: int):
        self._make = make
        self._images: list[NDArray[np.uint8] | None] = [None] * size
        self._room = room
        self._lock = threading.Lock()

    def find(self, index: int) -> NDArray[np.uint8] | None:
        """One image, if it was among the first."""
        return self._images[index]

    def get(self, index: int) -> NDArray[np.uint8]:
        """One image."""
        image = self._images[index]
        if image is not None:
            return image
        image = self._make(index)
        with self._lock:
            if self._images[index] is None and image.nbytes <= self._room:
                self._room -= image.nbytes
                # A part of something larger would keep all of that.
                self._images[index] = image if image.base is None else image.copy()
        return image
