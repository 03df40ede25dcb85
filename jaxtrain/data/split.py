"""A split: labels in memory, images read by index."""

import abc
import functools
import zlib

import numpy as np
from numpy.typing import NDArray


class Split(abc.ABC):
    """Examples in a fixed order; what every source makes.

    Attributes:
        name: the split's name in its source.
        size: number of examples.
        labels: int32 `[size]`.
        image_shape: (height, width, channels).
        nbytes: bytes of all images, decoded.
        origin: where the labels come from, for messages.
    """

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
    def read(self, indices: NDArray[np.integer]) -> NDArray[np.uint8]:
        """Images `[n, H, W, C]` of `indices` `[n]`, each in `[0, size)`; called from threads."""

    @property
    def images(self) -> NDArray[np.uint8]:
        """All images, uint8 `[size, H, W, C]`, read at every access unless they lie in memory."""
        return self.read(np.arange(self.size))

    @functools.cached_property
    def fingerprint(self) -> str:
        """8 hex digits that change with any image or label, with their order and their shape."""
        return f"{self._checksum():08x}"

    @abc.abstractmethod
    def _checksum(self) -> int:
        """CRC-32 of all that the fingerprint stands for."""


class RawSplit(abc.ABC):
    """Examples that are decoded one by one, of any size; a `Split` is made of it by `sizes`.

    Attributes:
        name: the split's name in its source.
        size: number of examples.
        labels: int32 `[size]`.
        channels: channels of every image.
        image_shape: (height, width, channels) if all images have it; None if sizes vary.
        origin: where the labels come from, for messages.
    """

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

    def read(self, indices: NDArray[np.integer]) -> NDArray[np.uint8]:
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
        self._base = base
        self._rows = rows

    def read(self, indices: NDArray[np.integer]) -> NDArray[np.uint8]:
        """Reads through the base."""
        return self._base.read(self._rows[indices])

    def _checksum(self) -> int:
        crc = zlib.crc32(self._base.fingerprint.encode())
        return zlib.crc32(np.ascontiguousarray(self._rows, "<i8").data, crc)
