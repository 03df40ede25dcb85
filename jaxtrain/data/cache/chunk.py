"""A file of decoded images, read memory-mapped."""

import contextlib
import fcntl
import mmap
import os
import re
import struct
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Final, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from jaxtrain.files import beside_pattern, temporary, unique_beside

SUFFIX: Final = ".images"
LAYOUT: Final = 1  # of the files; goes into their names
# Pixels of one image after those of another, then a row of the table for each image (where it
# begins, height, width, channels: int64), then this: the mark, the bytes of all pixels, the number
# of images, and the CRC-32 of the table.
_END: Final = struct.Struct("<8sQQL")
_MARK: Final = b"jaxtrain"
_ROW: Final = np.dtype("<i8")
_COLUMNS: Final = 4
# How long to wait for a lock that somebody has for a moment.
_TRIES: Final = 20
_PAUSE_SECONDS: Final = 0.01
# A digest, and what the name under which such a file is written matches.
NAME: Final = re.compile(rf"[0-9a-f]{{32}}{re.escape(SUFFIX)}")
TEMPORARY: Final = beside_pattern(NAME.pattern)


class Chunk:
    """The images of a file.

    Args:
        content: the file, memory-mapped.
        table: int64 `[images, 4]`.
    """

    def __init__(self, content: NDArray[np.uint8], table: NDArray[np.int64]):
        self._content = content
        self._table = table

    def get(self, row: SupportsIndex) -> NDArray[np.uint8]:
        """One image `[h, w, C]`, in memory that all processes share; not writable."""
        start, *shape = self._table[row].tolist()
        height, width, channels = shape
        return self._content[start : start + height * width * channels].reshape(shape)


def _share(file: BinaryIO) -> None:
    for _ in range(_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_SECONDS)
        except OSError:  # a disk without locks
            return
        else:
            return


def opened(path: Path, count: int) -> Chunk | None:
    """The chunk in a file; None: there is none, or not one that is whole and of `count` images.

    It takes a file descriptor for as long as it is used, and a lock if the disk has locks. (Who
    looks for old files has one for a moment.)

    Raises:
        OSError: it cannot be told, as where too many files are open.
    """
    try:
        with path.open("rb") as file:
            _share(file)
            # Has a copy of the descriptor, and the lock with it.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (FileNotFoundError, PermissionError, ValueError):  # ValueError: it is empty
        return None
    content = np.frombuffer(mapped, np.uint8)
    if len(content) < _END.size:
        return None
    mark, nbytes, found, checksum = _END.unpack(mapped[-_END.size :])
    size = count * _COLUMNS * _ROW.itemsize
    if mark != _MARK or found != count or nbytes + size + _END.size != len(content):
        return None
    table = mapped[nbytes : nbytes + size]
    if zlib.crc32(table) != checksum:
        return None
    return Chunk(content, np.frombuffer(table, _ROW).reshape(count, _COLUMNS))


def is_marked(path: Path) -> bool:
    """Whether a file ends as those of `write` do.

    Raises:
        OSError: it cannot be read, or is too short for it.
    """
    with path.open("rb") as file:
        file.seek(-_END.size, os.SEEK_END)
        return file.read(len(_MARK)) == _MARK


def write(path: Path, images: Iterable[NDArray[np.uint8]]) -> None:
    """Writes a chunk beside its place, to the disk, then renames it: it is there whole or not.

    The file beside it is locked until it has its place, if the disk has locks.

    Raises:
        OSError: it cannot be written.
    """
    with temporary(unique_beside(path)) as beside:
        rows, start = [], 0
        with _locked(beside) as file:
            for image in images:
                file.write(np.ascontiguousarray(image).data)
                rows.append((start, *image.shape))
                start += image.nbytes
            table = np.array(rows, _ROW).tobytes()
            file.write(table)
            file.write(_END.pack(_MARK, start, len(rows), zlib.crc32(table)))
            file.flush()
            os.fsync(file.fileno())
            os.replace(beside, path)


def _locked(path: Path) -> BinaryIO:
    """A new file, with a lock on it for as long as it is open."""
    while True:
        file = path.open("xb")
        with contextlib.suppress(OSError):  # a disk without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if path.exists():
            return file
        file.close()  # it was taken for one that is left over, before it was locked
