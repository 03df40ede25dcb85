import gzip
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

CODES = {"uint8": 0x08, "int8": 0x09, "int16": 0x0B, "int32": 0x0C}


def idx_bytes(array: np.ndarray) -> bytes:
    header = struct.pack(">BBBB", 0, 0, CODES[array.dtype.name], array.ndim)
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return header + sizes + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.fixture
def idx() -> Callable[[np.ndarray], bytes]:
    """An array as the content of an IDX file."""
    return idx_bytes


@pytest.fixture
def idx_folder(tmp_path: Path) -> Callable[..., str]:
    """Writes a folder of IDX files: `idx_folder({name: array or bytes, ...})`; `.gz` compresses."""

    def write(files: dict[str, Any]) -> str:
        for name, content in files.items():
            raw = content if isinstance(content, bytes) else idx_bytes(content)
            (tmp_path / name).write_bytes(
                gzip.compress(raw) if name.endswith(".gz") and raw[:2] != b"\x1f\x8b" else raw
            )
        return str(tmp_path)

    return write


@pytest.fixture
def toy() -> dict[str, np.ndarray]:
    """The four files of a data set of 20 and 10 examples, 3 classes, 4 x 5 pixels."""
    values = np.random.RandomState(0)
    return {
        "train-images-idx3-ubyte": values.randint(0, 256, (20, 4, 5)).astype(np.uint8),
        "train-labels-idx1-ubyte": (np.arange(20) % 3).astype(np.uint8),
        "t10k-images-idx3-ubyte": values.randint(0, 256, (10, 4, 5)).astype(np.uint8),
        "t10k-labels-idx1-ubyte": (np.arange(10) % 3).astype(np.uint8),
    }
