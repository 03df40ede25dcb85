"""A split: labels in memory, images read by index."""

import abc
import functools
import os
import types
import zlib
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Final

import numpy as np
from numpy.typing import NDArray

# Images that a thread reads at a time where all are read.
_CHUNK: Final = 64


class Split(abc.ABC):
    """Examples in a fixed order, with images of one shape.

    Attributes:
        name: the split's name in its source.
        size: number of examples.
        labels: int32 `[size]`.
        image_shape: (height, width, channels).
        nbytes: bytes of all images, decoded.
        origin: where the labels come from, for messages.
        random: whether what is read depends on the row seeds, so that it must not be kept.
        left_out: why files that cannot be decoded are no examples, in one line, by file.
    """

    random: bool = False
    left_out: Mapping[str, str] = types.MappingProxyType({})

    def __init__(
        self, name: str, labels: NDArray[np.int32], image_shape: tuple[int, int, int], origin: str
    ):
        height, width, channels = image_shape
        self.name = name
        self.size = len(labels)
        self.labels = labels
        self.image_shape = (height, width, channels)
        self.nbytes = self.size * height * width * channels
        self.origin = origin

    @abc.abstractmethod
    def read(
        self, indices: NDArray[np.integer], row_seeds: NDArray[np.uint64] | None = None
    ) -> NDArray[np.uint8]:
        """Images `[n, H, W, C]`; called from threads.

        Args:
            indices: `[n]`, each in `[0, size)`.
            row_seeds: uint64 `[n]`, of which each image's random changes are a function, for a
                split that is `random`; any other one does not look at them.
        """

    def file_of(self, index: int) -> str | None:
        """The path of an example's file; None where examples have no files of their own."""
        del index
        return None

    @property
    def images(self) -> NDArray[np.uint8]:
        """All images, uint8 `[size, H, W, C]`, read at every access unless they lie in memory."""
        images = np.empty((self.size, *self.image_shape), np.uint8)

        def fill(chunk: NDArray[np.int64]) -> None:
            images[chunk[0] : chunk[-1] + 1] = self.read(chunk)

        in_threads(fill, self.size)
        return images

    @functools.cached_property
    def fingerprint(self) -> str:
        """8 hex digits that change with any image or label, with their order and their shape."""
        return f"{self._checksum():08x}"

    @abc.abstractmethod
    def _checksum(self) -> int:
        """CRC-32 of all that the fingerprint stands for."""


def in_threads(work: Callable[[NDArray[np.int64]], None], size: int) -> None:
    """Calls `work` with all indices below `size`, some at a time, in as many threads as CPUs.

    Raises:
        Exception: what a call raised; others may not have been made then.
    """
    indices = np.arange(size, dtype=np.int64)
    chunks = [indices[start : start + _CHUNK] for start in range(0, size, _CHUNK)]
    with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(work, chunks):
            pass


class RawSplit(abc.ABC):
    """Examples that are decoded one by one, of any size; a `Split` is made of it by `sizes`.

    Attributes:
        name: the split's name in its source.
        size: number of examples.
        labels: int32 `[size]`.
        channels: channels of every image.
        image_shape: (height, width, channels) if all images have it; None if sizes vary.
        origin: where the labels come from, for messages.
        left_out: as of a `Split`.
    """

    left_out: Mapping[str, str] = types.MappingProxyType({})
    name: str
    size: int
    labels: NDArray[np.int32]
    channels: int
    image_shape: tuple[int, int, int] | None
    origin: str

    @abc.abstractmethod
    def decode(self, index: int) -> NDArray[np.uint8]:
        """One image `[h, w, channels]`; called from threads.

        Raises:
            DataError: it cannot be read; the message says where it is.
        """

    def file_of(self, index: int) -> str | None:
        """As of a `Split`."""
        del index
        return None

    @functools.cached_property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """8 hex digits that change with the examples, their labels and their order."""


class ArraySplit(Split):
    """A split whose images are one array, in memory or memory-mapped.

    Args:
        name: the split's name.
        images: uint8 `[N, H, W, C]`; kept, not copied.
        labels: int32 `[N]`.
        origin: where the labels come from, for messages.
    """

    def __init__(
        self, name: str, images: NDArray[np.uint8], labels: NDArray[np.int32], origin: str
    ):
        super().__init__(name, labels, images.shape[1:], origin)
        self._images = images

    def read(
        self, indices: NDArray[np.integer], row_seeds: NDArray[np.uint64] | None = None
    ) -> NDArray[np.uint8]:
        """Copies rows out of the array."""
        images: NDArray[np.uint8] = self._images[indices]
        return images

    @property
    def images(self) -> NDArray[np.uint8]:
        """The array itself."""
        return self._images

    def _checksum(self) -> int:
        crc = zlib.crc32(str(self._images.shape).encode())
        crc = zlib.crc32(np.ascontiguousarray(self.labels, "<i4").data, crc)
        return zlib.crc32(np.ascontiguousarray(self._images).data, crc)


class Subset(Split):
    """Some of the examples of another split.

    Args:
        name: the subset's name.
        base: the split to choose from.
        rows: int64 `[N]`, indices in `base` in the subset's order.
    """

    def __init__(self, name: str, base: Split, rows: NDArray[np.int64]):
        super().__init__(name, base.labels[rows], base.image_shape, base.origin)
        self.random = base.random
        self.left_out = base.left_out
        self._base = base
        self._rows = rows

    def read(
        self, indices: NDArray[np.integer], row_seeds: NDArray[np.uint64] | None = None
    ) -> NDArray[np.uint8]:
        """Reads through the base."""
        return self._base.read(self._rows[indices], row_seeds)

    def file_of(self, index: int) -> str | None:
        """Asks the base."""
        return self._base.file_of(int(self._rows[index]))

    def _checksum(self) -> int:
        crc = zlib.crc32(self._base.fingerprint.encode())
        return zlib.crc32(np.ascontiguousarray(self._rows, "<i8").data, crc)
