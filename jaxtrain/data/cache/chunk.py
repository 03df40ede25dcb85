"""A file of decoded images, read memory-mapped."""

import contextlib
import mmap
import os
import platform
import re
import struct
import uuid
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from jaxtrain.files import temporary

SUFFIX: Final = ".images"
LAYOUT: Final = 1  # of the files; goes into their names
# Pixels of one image after those of another, then a row of the table for each image (where it
# begins, height, width, channels: int64), then this: the mark, the bytes of all pixels, the number
# of images, and the CRC-32 of the table.
_END: Final = struct.Struct("<8sQQL")
_MARK: Final = b"jaxtrain"
_ROW: Final = np.dtype("<i8")
_COLUMNS: Final = 4
_TEMPORARY: Final = re.compile(
    rf"\..+{re.escape(SUFFIX)}\.(?P<node>.*)\.(?P<process>\d+)\.[0-9a-f]{{8}}\.tmp"
)
_DAY_SECONDS: Final = 86_400


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


def opened(path: Path, count: int) -> Chunk | None:
    """The chunk in a file; None: there is none, or not one that is whole and of `count` images."""
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # ValueError: it is empty
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


def write(path: Path, images: Iterable[NDArray[np.uint8]]) -> None:
    """Writes a chunk beside its place, to the disk, then renames it: it is there whole or not.

    Raises:
        OSError: it cannot be written.
    """
    name = f".{path.name}.{platform.node()}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp"
    with temporary(path.with_name(name)) as beside:
        rows, start = [], 0
        with open(beside, "wb") as file:
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


def is_left(path: Path, now: float) -> bool:
    """Whether a file is a temporary one of `write`, and nobody writes it any more.

    That is so if its process is gone; if that was one of another machine, or of another container,
    then if the file has not grown for a day.
    """
    match = _TEMPORARY.fullmatch(path.name)
    if match is None:
        return False
    if match["node"] == platform.node():
        return not os.path.exists(f"/proc/{match['process']}")
    with contextlib.suppress(OSError):
        return now - path.stat().st_mtime > _DAY_SECONDS
    return False
