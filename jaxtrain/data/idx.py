"""The IDX format of MNIST and its relatives: one array a file, big-endian, plain or gzip.

A file is two zero bytes, a type code, the number of dimensions, each dimension as an unsigned
32-bit number, then the values.
"""

import gzip
import math
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxtrain.errors import UsageError

_INTEGERS: Final = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4"}
_UINT8: Final = {0x08: "u1"}
_GZIP_MAGIC: Final = b"\x1f\x8b"


def read_images(path: Path) -> NDArray[np.uint8]:
    """Images uint8 `[N, H, W, C]` of a file of shape `[N, H, W]` or `[N, H, W, C]`.

    A plain file is memory-mapped.

    Raises:
        UsageError: the file cannot be read, or is not a whole IDX file of images.
    """
    images: NDArray[np.uint8] = _read(path, "images", _UINT8, (3, 4))
    return images if images.ndim == 4 else images[..., np.newaxis]


def read_labels(path: Path) -> NDArray[np.int32]:
    """Labels int32 `[N]` of a file of any IDX integer type.

    Raises:
        UsageError: the file cannot be read, or is not a whole IDX file of labels.
    """
    return _read(path, "labels", _INTEGERS, (1,)).astype(np.int32)


def _read(
    path: Path, what: str, types: dict[int, str], dimensions: tuple[int, ...]
) -> NDArray[Any]:
    content = _content(path)
    start = 4 + 4 * _rank(path, content[:4].tobytes(), what, types, dimensions)
    if len(content) < start:
        raise UsageError(
            f"{path} is short: {len(content)} bytes, its header alone needs {start}; fetch it again"
        )
    # Python integers: four damaged dimensions overflow NumPy's.
    shape = tuple(int(size) for size in content[4:start].view(">u4"))
    dtype = np.dtype(types[content[2]])
    end = start + math.prod(shape) * dtype.itemsize
    if len(content) != end:
        raise UsageError(
            f"{path} is {'short' if len(content) < end else 'too long'}: {len(content)} bytes, "
            f"its header says {what} of shape {list(shape)}, which needs {end}; fetch it again"
        )
    if 0 in shape:
        raise UsageError(f"{path} is empty: its header says {what} of shape {list(shape)}")
    return content[start:].view(dtype).reshape(shape)


def _rank(
    path: Path, header: bytes, what: str, types: dict[int, str], dimensions: tuple[int, ...]
) -> int:
    """The number of dimensions, from the first 4 bytes."""
    if len(header) < 4:
        raise UsageError(
            f"{path} is short: {len(header)} bytes, an IDX file of {what} has more; fetch it again"
        )
    code, rank = header[2:]
    if header[:2] != b"\0\0" or code not in types or rank not in dimensions:
        codes = "|".join(f"{known:02x}" for known in types)
        ranks = "|".join(f"{known:02x}" for known in dimensions)
        raise UsageError(
            f"{path} is not an IDX file of {what}: it starts with {header.hex()}, "
            f"expected 0000 ({codes}) ({ranks})"
        )
    return rank


def _content(path: Path) -> NDArray[np.uint8]:
    """All bytes, decompressed. Told by content: browsers unpack `.gz` and keep the name."""
    try:
        with path.open("rb") as file:
            magic = file.read(2)
            if magic != _GZIP_MAGIC:
                # An empty file cannot be mapped; a view as plain array indexes faster.
                return np.asarray(np.memmap(file, mode="r")) if magic else np.empty(0, np.uint8)
        packed = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        return np.frombuffer(gzip.decompress(packed), np.uint8)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} is damaged gzip: {error}; fetch it again") from error
