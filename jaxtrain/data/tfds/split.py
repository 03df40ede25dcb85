"""Examples of a prepared data set, read and decoded one by one."""

import contextlib
import dataclasses
import functools
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from jaxtrain.data.decode import PixelBox, decode, decode_part
from jaxtrain.data.descriptors import open_files
from jaxtrain.data.split import Identity, RawSplit
from jaxtrain.data.tfds.index import ShardIndex
from jaxtrain.data.tfds.records import RecordFile, RecordFormat, features
from jaxtrain.errors import DataError, one_line


@dataclasses.dataclass(frozen=True)
class ImageFeature:
    """The feature that is the image.

    Attributes:
        key: its name.
        channels: 1, 3 or 4.
        shape: (height, width, channels) if every image has it; None if sizes vary.
    """

    key: str
    channels: int
    shape: tuple[int, int, int] | None


class Part(NamedTuple):
    """A run of a record file's records.

    Attributes:
        path: the file.
        known: what is known of it.
        records: which of its records.
    """

    path: Path
    known: ShardIndex
    records: slice


class TfdsSplit(RawSplit):
    """A split of a prepared data set.

    Args:
        name: the split, as TensorFlow Datasets has it: `train`, `train[:80%]`, `train+test`.
        parts: its examples in order.
        record_format: how the files are read.
        feature: the image.
        origin: the data set and its folder, for messages.
    """

    def __init__(
        self,
        name: str,
        parts: Sequence[Part],
        record_format: RecordFormat,
        feature: ImageFeature,
        origin: str,
    ):
        self.name = name
        self.channels = feature.channels
        self.image_shape = feature.shape
        self.origin = origin
        self._feature = feature
        self._parts = parts
        lengths = [len(part.known.sizes[part.records]) for part in parts]
        self.size = sum(lengths)
        self._part = np.repeat(np.arange(len(parts)), lengths)
        self._record = np.concatenate(
            [np.arange(len(part.known.sizes))[part.records] for part in parts]
        )
        self._sizes = np.concatenate([part.known.sizes[part.records] for part in parts])
        self._checksums = np.concatenate([part.known.checksums[part.records] for part in parts])
        labels = np.concatenate([part.known.labels[part.records] for part in parts])
        self.labels = labels.astype(np.int32)

        # A file stays open while a thread reads it, also when it has fallen out of the cache.
        @functools.lru_cache(maxsize=open_files())
        def file(part: int) -> RecordFile:
            return record_format.open(parts[part].path, parts[part].known.sizes)

        self._file = file

    def identities(self) -> Sequence[Identity]:
        """Bytes and CRC-32C of each record, and which feature is the image."""
        version = f"{self._feature.key} {self.channels}".encode()
        pairs = zip(self._sizes.tolist(), self._checksums.tolist(), strict=True)
        return [Identity(b"%d %d" % pair, version) for pair in pairs]

    def decode(self, index: int, enough: tuple[int, int] | None = None) -> NDArray[np.uint8]:
        """Reads and decodes one image `[h, w, channels]`; see `RawSplit`.

        As TensorFlow does it: alpha that is not wanted is dropped, EXIF is not looked at, and no
        image is reduced.
        """
        with self._named(index):
            image = decode(self._encoded(index), self.channels, background=None, upright=False)
            if self.image_shape not in (None, image.shape):
                raise ValueError(f"the image is {image.shape}, not {self.image_shape}")
            return image

    def decode_part(
        self,
        index: int,
        choose: Callable[[tuple[int, int]], PixelBox],
        enough: tuple[int, int] | None = None,
    ) -> NDArray[np.uint8]:
        """Reads one image and decodes a part of it; see `RawSplit`."""
        with self._named(index):
            encoded = self._encoded(index)
            return decode_part(encoded, self.channels, choose, background=None, upright=False)

    def _encoded(self, index: int) -> bytes:
        content = self._file(int(self._part[index])).read(int(self._record[index]))
        if google_crc32c.value(content) != self._checksums[index]:
            raise ValueError("it is not what it was when the data set was opened first")
        (encoded,) = features(content)[self._feature.key].bytes_list.value
        image: bytes = encoded
        return image

    @contextlib.contextmanager
    def _named(self, index: int) -> Iterator[None]:
        """Names a record in errors."""
        try:
            yield
        # Decoders raise errors of every kind for data that is broken.
        except Exception as error:
            raise DataError(
                f"record {self._record[index]} of {self._parts[self._part[index]].path} cannot be "
                f"used: {one_line(error)}"
            ) from error

    @functools.cached_property
    def fingerprint(self) -> str:
        """8 hex digits of the examples in their order: bytes, CRC-32C and label of each record.

        The contents are those that the index was made of, each record read as a whole; a file that
        changed since then is read again when the split is opened if its size or its time changed.
        The name, the version and the place of the data set, the files' format and how examples are
        parted into them change nothing; which feature is the image does.
        """
        crc = zlib.crc32(json.dumps([self._feature.key, self.channels]).encode())
        crc = zlib.crc32(self._sizes.astype("<i8").data, crc)
        crc = zlib.crc32(self._checksums.astype("<u4").data, crc)
        return f"{zlib.crc32(self.labels.astype('<i4').data, crc):08x}"
