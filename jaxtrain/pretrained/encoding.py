"""Bytes to arrays."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


def decode(raw: bytes | bytearray, dtype: str, order: Literal["<", ">"] = "<") -> NDArray[Any]:
    """An array `[elements]` of what a file holds.

    Args:
        raw: whole elements.
        dtype: NumPy's name of their dtype, or `bfloat16`, which NumPy does not have and which
            becomes float32: its upper half is a bfloat16 number.
        order: of the bytes of an element, `<` (little) or `>` (big).
    """
    if dtype == "bfloat16":
        upper = np.frombuffer(raw, np.dtype("uint16").newbyteorder(order))
        return (upper.astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, np.dtype(dtype).newbyteorder(order))
