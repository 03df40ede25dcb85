"""Files of records, each a `tf.train.Example`: whole files are scanned, single records read."""

import os
import struct
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import google_crc32c
import numpy as np
from array_record.python import array_record_module
from numpy.typing import NDArray
from tensorflow_datasets.proto import tf_example_pb2

from jaxtrain.errors import UsageError, one_line

_TFRECORD_HEADER: Final = struct.Struct("<QI")  # length, checksum of these 8 bytes
_TFRECORD_FOOTER: Final = struct.Struct("<I")  # checksum of the content
_TFRECORD_FRAME: Final = _TFRECORD_HEADER.size + _TFRECORD_FOOTER.size
_SCAN_BYTES: Final = 2**20

Scan = Callable[[Path], Iterator[tuple[bytes, int]]]


class RecordFile(Protocol):
    """An open file of records."""

    def read(self, record: int) -> bytes:
        """One record, by its position in the file; called from threads.

        Raises:
            OSError, RuntimeError: it cannot be read. That it is not whole may go unnoticed.
        """
        ...


class RecordFormat(NamedTuple):
    """How the files of one format are read.

    Attributes:
        scan: yields every record of a file and its CRC-32C, each checked against the file's own
            checksum; `UsageError` for a file that is missing or damaged.
        open: opens a file for reads of single records; takes the path and int64 `[records]`, the
            bytes of each record.
    """

    scan: Scan
    open: Callable[[Path, NDArray[np.int64]], RecordFile]


def damaged(path: Path, record: int, complaint: str) -> UsageError:
    """The error for a record that cannot be used."""
    return UsageError(
        f"{path} is damaged at record {record}: {complaint}; fetch or prepare the data set again"
    )


def features(content: bytes) -> Any:
    """The features of a record: name to protobuf `Feature`, an empty one for any other name.

    Raises:
        ValueError: it is no `tf.train.Example`.
    """
    try:
        return tf_example_pb2.Example.FromString(content).features.feature
    except Exception as error:  # protobuf's own, which would be one more dependency
        raise ValueError(f"it is no tf.train.Example ({error})") from error


def unreadable(path: Path, error: OSError) -> UsageError:
    """The error for a file that cannot be opened."""
    return UsageError(
        f"{path} cannot be read: {error.strerror or error}; fetch or prepare the data set again"
    )


class TfRecordFile:
    """A tfrecord file, which says nothing of where its records are.

    Args:
        path: the file.
        sizes: int64 `[records]`, bytes of each record.
    """

    def __init__(self, path: Path, sizes: NDArray[np.int64]):
        self._sizes = sizes
        self._starts = np.cumsum(sizes + _TFRECORD_FRAME) - sizes - _TFRECORD_FOOTER.size
        # Positioned reads of a plain descriptor share nothing between threads.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, record: int) -> bytes:
        """Reads one record in one system call."""
        return os.pread(self._descriptor, int(self._sizes[record]), int(self._starts[record]))


def _scan_tfrecord(path: Path) -> Iterator[tuple[bytes, int]]:
    with _opened(path) as file:
        record = 0
        while header := file.read(_TFRECORD_HEADER.size):
            if len(header) < _TFRECORD_HEADER.size:
                raise damaged(path, record, "the file ends in its header")
            length, header_checksum = _TFRECORD_HEADER.unpack(header)
            if _masked(google_crc32c.value(header[:8])) != header_checksum:
                raise damaged(path, record, "the checksum of its length is wrong")
            content = file.read(length)
            footer = file.read(_TFRECORD_FOOTER.size)
            if len(footer) < _TFRECORD_FOOTER.size:
                raise damaged(path, record, "the file ends in it")
            checksum = google_crc32c.value(content)
            if _TFRECORD_FOOTER.unpack(footer) != (_masked(checksum),):
                raise damaged(path, record, "its checksum is wrong")
            yield content, checksum
            record += 1


def _masked(checksum: int) -> int:
    """The CRC-32C as tfrecord stores it."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


class ArrayRecordFile:
    """An array_record file, which has an index of its own.

    Args:
        path: the file.

    Attributes:
        records: how many it holds; 0 if it is damaged, which is all that its reader says of that.
    """

    def __init__(self, path: Path):
        # Without read-ahead, as the reader's documentation has it for random access.
        self._reader = array_record_module.ArrayRecordReader(
            os.fspath(path),
            options="readahead_buffer_size:0,max_parallelism:0",
            file_reader_buffer_size=32768,
        )
        self.records: int = self._reader.num_records()

    def read(self, record: int) -> bytes:
        """Reads one record, by a method that changes nothing in the reader."""
        # It takes 4 us. A list of positions takes 150, since the whole index is gone through.
        (content,) = self._reader.read(record, record + 1)
        return content


def _scan_array_record(path: Path) -> Iterator[tuple[bytes, int]]:
    with _opened(path):
        pass  # To the reader a missing file is one without records.
    file = ArrayRecordFile(path)
    for record in range(file.records):
        try:
            content = file.read(record)
        except RuntimeError as error:
            raise damaged(path, record, one_line(error)) from error
        yield content, google_crc32c.value(content)


def _opened(path: Path) -> Any:
    try:
        return path.open("rb", buffering=_SCAN_BYTES)
    except OSError as error:
        raise unreadable(path, error) from error


FORMATS: Final = {
    "tfrecord": RecordFormat(_scan_tfrecord, TfRecordFile),
    "array_record": RecordFormat(_scan_array_record, lambda path, _sizes: ArrayRecordFile(path)),
}
