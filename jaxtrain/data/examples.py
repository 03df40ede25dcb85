"""What one example is: an image (height, width, channels), or a vector (features,)."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxtrain.errors import DataError

_IMAGE_DIMENSIONS: Final = 3
# Kinds of NumPy's dtypes that features may have in files: they become float32.
NUMBER_KINDS: Final = "biuf"


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


def finite_features(values: NDArray[Any]) -> NDArray[np.float32]:
    """Features of one or of many examples as float32.

    Args:
        values: numbers `[..., D]`.

    Raises:
        DataError: one of them is NaN, infinite or too large; names the first, and how many are.
    """
    with np.errstate(over="ignore"):
        features = values.astype(np.float32, copy=False)
    bad = ~np.isfinite(features)
    if bad.any():
        first = tuple(np.argwhere(bad)[0])
        where = f"feature {first[-1]}" + (f" of row {first[0]}" if len(first) > 1 else "")
        raise DataError(
            f"{where} is {values[first]}, which is no finite float32, as are {bad.sum():,} of "
            f"{bad.size:,} values"
        )
    return features
