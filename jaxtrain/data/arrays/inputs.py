"""Images and features as arrays have them."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxtrain.data.examples import LARGEST_FEATURE, NUMBER_KINDS, not_finite, too_large
from jaxtrain.errors import UsageError

_CHANNELS: Final = (1, 3, 4)
_ROWS: Final = 1024


def check_inputs(array: NDArray[Any], where: str) -> NDArray[Any]:
    """Images or features, as an `ArraySplit` takes them.

    Args:
        array: images uint8 `[N, H, W, C]`, or `[N, H, W]` if grey; or features, numbers `[N, D]`,
            which are read once, whether each is a finite float32 up to `LARGEST_FEATURE`.
        where: what it is, for messages.

    Returns:
        The array, `[N, H, W, C]` or `[N, D]`, not copied.

    Raises:
        UsageError: it is neither; the message says how to make one of it.
    """
    what = f"{where} is {array.dtype} {list(array.shape)}"
    if array.dtype.kind not in NUMBER_KINDS or array.ndim not in (1, 2, 3, 4):
        raise UsageError(
            f"{what}; images are uint8 [N, H, W, C], or [N, H, W] if grey, features numbers [N, D]"
        )
    if array.ndim == 1:
        raise UsageError(f"{what}; features are [N, D]: of one feature, save x.reshape(-1, 1)")
    if 0 in array.shape:
        raise UsageError(f"{what}, which holds no examples")
    if array.ndim == 2:
        _check_numbers(array, where)
        return array
    if array.dtype != np.uint8:
        raise UsageError(
            f"{what}, {_range(array)}; images are uint8: save {_as_bytes(array)}, or, to train on "
            "them as features, x.reshape(len(x), -1)"
        )
    if array.ndim == 3:
        return array[..., np.newaxis]
    if array.shape[1] in _CHANNELS and array.shape[3] not in _CHANNELS:
        raise UsageError(
            f"{what}, whose channels seem to come first; images are [N, H, W, C]: save "
            "x.transpose(0, 2, 3, 1)"
        )
    return array


def _check_numbers(features: NDArray[Any], where: str) -> None:
    for start in range(0, len(features), _ROWS):
        rows = features[start : start + _ROWS]
        if (first := not_finite(rows)) is not None:
            row, feature = first
            value = rows[row, feature]
            fill = "np.where(np.isnan(x), 0, x)" if np.isnan(value) else "np.clip(x, -1e6, 1e6)"
            raise UsageError(
                f"{where} holds {value} in row {start + row}, feature {feature}; features must be "
                f"finite float32 numbers: put one in its place, as by {fill}, or leave such rows "
                "out"
            )
        if (first := too_large(rows)) is not None:
            row, feature = first
            raise UsageError(
                f"{where} holds {rows[row, feature]:g} in row {start + row}, feature {feature}; "
                f"features are numbers up to {LARGEST_FEATURE:g}, as sums of larger ones overflow "
                "float32: divide the feature, or leave such rows out if it is a mark for none"
            )


def _range(array: NDArray[Any]) -> str:
    return f"from {float(array.min()):g} to {float(array.max()):g}"


def _as_bytes(array: NDArray[Any]) -> str:
    """How to make bytes of images."""
    low, high = array.min(), array.max()
    if not np.isfinite([low, high]).all():
        return "np.nan_to_num(x, posinf=0, neginf=0), and then bytes of it"
    if array.dtype.kind in "iu" and low >= 0 and 1 < high <= 255:
        return "x.astype('uint8')"
    if low >= 0 and high <= 1:
        return "(255 * x).round().astype('uint8')"
    if low >= 0 and high <= 255:
        return "x.round().astype('uint8')"
    return "(255 * (x - x.min()) / (x.max() - x.min())).round().astype('uint8')"
