"""A split: labels in memory, images read by index."""

import abc
import functools
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxtrain.data import examples
from jaxtrain.data.threads import workers

# Takes what is done before training can begin, as in "decode", how much of it, and of how much.
Progress = Callable[[str, int, int], None]


def silent(what: str, done: int, total: int) -> None:
    """Tells nobody."""


# Images that a thread reads at a time where all are read.
_CHUNK: Final = 64
# Examples whose bytes are looked at together in a checksum.
_CHECKED: Final = 1024


class LeftOut(NamedTuple):
    """An example that there is not, since its file cannot be decoded.

    Attributes:
        file: the file, which several of a list may name.
        why: why it cannot be decoded, in one line.
    """

    file: str
    why: str


class Split(abc.ABC):
    """Examples in a fixed order: images of one shape, or vectors of as many features.

    Features stand wherever images do, also in names: `images` are the features then.

    Attributes:
        name: the split's name in its source.
        size: number of examples.
        labels: int32 `[size]`.
        image_shape: (height, width, channels), or (features,).
        dtype: uint8 of images, float32 of features.
        nbytes: bytes of all images, decoded.
        origin: where the labels come from, for messages.
        random: whether what is read depends on the row seeds, so that it must not be kept.
        left_out: the examples that there are not, since their files cannot be decoded.
    """

    random: bool = False
    left_out: Sequence[LeftOut] = ()

    def __init__(
        self, name: str, labels: NDArray[np.int32], image_shape: tuple[int, ...], origin: str
    ):
        self.name = name
        self.size = len(labels)
        self.labels = labels
        self.image_shape = image_shape
        self.dtype = examples.dtype_of(image_shape)
        self.nbytes = self.size * math.prod(image_shape) * self.dtype.itemsize
        self.origin = origin

    @abc.abstractmethod
    def read(
        self, indices: NDArray[np.integer], row_seeds: NDArray[np.uint64] | None = None
    ) -> NDArray[Any]:
        """Images uint8 `[n, H, W, C]` or features float32 `[n, D]`; called from threads.

        Args:
            indices: `[n]`, each in `[0, size)`.
            row_seeds: uint64 `[n]`, of which each image's random changes are a function, for a
                split that is `random`; any other one does not look at them.
        """

    def file_of(self, index: int) -> str | None:
        """The path of an example's file; None where examples have no files of their own."""
        del index
        return None

    def prepare(self, progress: Progress, rows: NDArray[np.int64] | None = None) -> None:
        """Makes what is kept on disk for reading faster, where the config asks for that.

        What is read does not depend on it.

        Args:
            progress: told how far it is; called from threads.
            rows: which examples are going to be read; None: all.

        Raises:
            UsageError: there is no room for it.
            DataError: an example cannot be read.
        """
        del progress, rows

    def check_room(self, rows: NDArray[np.int64] | None = None, besides: int = 0) -> int:
        """Looks whether there is room for what `prepare` makes, and makes nothing.

        Args:
            rows: as for `prepare`.
            besides: bytes that are going to be written before.

        Returns:
            Bytes that `prepare` is going to write, about.

        Raises:
            UsageError: there is no room for it.
            DataError: an example cannot be read; few are looked at.
        """
        del rows, besides
        return 0

    @property
    def images(self) -> NDArray[Any]:
        """All examples, as `read` gives them, read at every access unless they lie in memory."""
        images = np.empty((self.size, *self.image_shape), self.dtype)

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
    with workers() as pool:
        for _ in pool.map(work, chunks):
            pass


class Identity(NamedTuple):
    """What tells an example from all others, in any of its states.

    Attributes:
        name: the same as long as it is there, whatever is added or removed beside it.
        version: another one whenever its image may have become another one.
    """

    name: bytes
    version: bytes


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
        is_decoded: whether the images lie in arrays, so that they are read without being decoded.
    """

    is_decoded: bool = False
    left_out: Sequence[LeftOut] = ()
    name: str
    size: int
    labels: NDArray[np.int32]
    channels: int
    image_shape: tuple[int, int, int] | None
    origin: str

    @abc.abstractmethod
    def decode(self, index: int, enough: tuple[int, int] | None = None) -> NDArray[np.uint8]:
        """One image `[h, w, channels]`; called from threads.

        Args:
            index: in `[0, size)`.
            enough: (height, width) that it may be reduced to, as of `decode.decode`; not given
                where `image_shape` is set.

        Raises:
            DataError: it cannot be read; the message says where it is.
        """

    def decode_part(
        self,
        index: int,
        choose: Callable[[tuple[int, int]], tuple[int, int, int, int]],
        enough: tuple[int, int] | None = None,
    ) -> NDArray[np.uint8]:
        """A part of what `decode` gives for an image that it has given before, maybe sooner.

        Args:
            index: in `[0, size)`.
            choose: the part (left, top, right, bottom), by the image's (height, width).
            enough: as for `decode`.

        Raises:
            DataError: as for `decode`.
        """
        image = self.decode(index, enough)
        left, top, right, bottom = choose(image.shape[:2])
        return image[top:bottom, left:right]

    def file_of(self, index: int) -> str | None:
        """As of a `Split`."""
        del index
        return None

    @abc.abstractmethod
    def identities(self) -> Sequence[Identity]:
        """Of all examples in their order.

        Raises:
            UsageError: an example is not there.
        """

    @functools.cached_property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """8 hex digits that change with the examples, their labels and their order."""


class ArraySplit(Split):
    """A split whose images or features are one array, in memory or memory-mapped.

    Args:
        name: the split's name.
        images: uint8 `[N, H, W, C]`, or numbers `[N, D]`, which are read as float32; kept, not
            copied.
        labels: int32 `[N]`.
        origin: where the labels come from, for messages.
    """

    def __init__(self, name: str, images: NDArray[Any], labels: NDArray[np.int32], origin: str):
        super().__init__(name, labels, images.shape[1:], origin)
        self._images = images

    def read(
        self, indices: NDArray[np.integer], row_seeds: NDArray[np.uint64] | None = None
    ) -> NDArray[Any]:
        """Copies rows out of the array."""
        return self._images[indices].astype(self.dtype, copy=False)

    @property
    def images(self) -> NDArray[Any]:
        """The array itself, if it is of `dtype`."""
        return self._images.astype(self.dtype, copy=False)

    def _checksum(self) -> int:
        crc = zlib.crc32(str(self._images.shape).encode())
        crc = zlib.crc32(np.ascontiguousarray(self.labels, "<i4").data, crc)
        for start in range(0, self.size, _CHECKED):
            some = self._images[start : start + _CHECKED]
            crc = zlib.crc32(np.ascontiguousarray(some, self.dtype.newbyteorder("<")).data, crc)
        return crc


class Subset(Split):
    """Some of the examples of another split.

    Args:
        name: the subset's name.
        base: the split to choose from.
        rows: int64 `[N]`, indices in `base` in the subset's order.
        left_out: as of a `Split`; which of two parts those of `base` belong to, it does not know.
    """

    def __init__(
        self,
        name: str,
        base: Split,
        rows: NDArray[np.int64],
        left_out: Sequence[LeftOut] = (),
    ):
        super().__init__(name, base.labels[rows], base.image_shape, base.origin)
        self.random = base.random
        self.left_out = left_out
        self._base = base
        self._rows = rows

    def read(
        self, indices: NDArray[np.integer], row_seeds: NDArray[np.uint64] | None = None
    ) -> NDArray[Any]:
        """Reads through the base."""
        return self._base.read(self._rows[indices], row_seeds)

    def file_of(self, index: int) -> str | None:
        """Asks the base."""
        return self._base.file_of(int(self._rows[index]))

    def prepare(self, progress: Progress, rows: NDArray[np.int64] | None = None) -> None:
        """Has the base do it."""
        self._base.prepare(progress, self._rows if rows is None else self._rows[rows])

    def check_room(self, rows: NDArray[np.int64] | None = None, besides: int = 0) -> int:
        """Has the base do it."""
        return self._base.check_room(self._rows if rows is None else self._rows[rows], besides)

    def _checksum(self) -> int:
        crc = zlib.crc32(self._base.fingerprint.encode())
        return zlib.crc32(np.ascontiguousarray(self._rows, "<i8").data, crc)
