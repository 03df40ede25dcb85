"""What one example is: an image (height, width, channels), or a vector (features,)."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_IMAGE_DIMENSIONS: Final = 3
# Kinds of NumPy's dtypes that features may have in files: they become float32.
NUMBER_KINDS: Final = "biuf"
# What features may be in training, so that sums of them do not overflow float32.
LARGEST_FEATURE: Final = 1e30


def is_image(shape: Sequence[int]) -> bool:
    """Whether an example of this shape is an image; else it is a vector of features."""
    return len(shape) == _IMAGE_DIMENSIONS


def dtype_of(shape: Sequence[int]) -> np.dtype[Any]:
    """The dtype of examples of this shape: uint8 of images, float32 of features."""
    return np.dtype(np.uint8 if is_image(shape) else np.float32)


def shape_text(shape: Sequence[int]) -> str:
    """A shape in words: `28x28x1`, or `30 features`."""
    if is_image(shape):
        return "x".join(map(str, shape))
    return f"{shape[0]:,} feature{'' if shape[0] == 1 else 's'}"


def as_features(values: NDArray[Any]) -> NDArray[np.float32]:
    """Numbers as float32; too large ones become infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)


def not_finite(values: NDArray[Any]) -> tuple[int, ...] | None:
    """The index of the first number that is no finite float32; None if there is none."""
    return _first(~np.isfinite(as_features(values)))


def too_large(values: NDArray[Any]) -> tuple[int, ...] | None:
    """The index of the first number beyond `LARGEST_FEATURE`; None if there is none."""
    return _first(np.abs(as_features(values)) > LARGEST_FEATURE)


def _first(bad: NDArray[np.bool_]) -> tuple[int, ...] | None:
    if not bad.any():
        return None
    return tuple(map(int, np.unravel_index(bad.argmax(), bad.shape)))
