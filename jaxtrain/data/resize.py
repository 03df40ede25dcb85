"""Images at another size: bilinear with antialiasing, as Pillow does it.

Where there is cykooz-resizer (on x86-64), it does the work: the same sums with SIMD, three times as
fast. A pixel differs from Pillow's by one level of 255 at most, where roundings meet by two, and by
a quarter in the mean. The result is the same whatever the instructions of the CPU. Channels are
independent of each other: a fourth one is no alpha.
"""

import functools
import importlib.metadata
import math
import threading
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

try:
    import cykooz_resizer as simd
except ImportError:
    simd = None

Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels of the image
_PACKAGE: Final = "Pillow" if simd is None else "cykooz-resizer"
# What makes the pixels, for caches of them: another version may round in another way.
NAME: Final = f"{_PACKAGE} {importlib.metadata.version(_PACKAGE)}"


class _Local(threading.local):
    """What a thread resizes with; made at its first use there."""

    def __init__(self) -> None:
        bilinear = simd.ResizeAlg.convolution(simd.FilterType.bilinear)
        self.resizer = simd.Resizer()
        self.options = simd.ResizeOptions(bilinear, use_alpha=False)
        kinds = simd.PixelType
        self.kinds = {1: kinds.U8, 2: kinds.U8x2, 3: kinds.U8x3, 4: kinds.U8x4}
        # Of one size mostly.
        self.result = functools.lru_cache(maxsize=1)(simd.ImageData)


_local: Any = None if simd is None else _Local()


def resize(
    image: NDArray[np.uint8], sides: tuple[int, int], box: Box | None = None
) -> NDArray[np.uint8]:
    """An image, or a part of it, at another size. Other threads run meanwhile.

    Where the image gets smaller, each pixel is a mean over all that it covers.

    Args:
        image: uint8 `[h, w, C]`.
        sides: (height, width) of the result.
        box: the part, inside the image; None: all of it. What lies beside it counts as far as the
            pixels at its edge reach.

    Returns:
        uint8 `[height, width, C]`, which may be read-only.
    """
    if box is not None:
        image, box = _around(image, sides, box)
    if simd is None:
        return _by_pillow(image, sides, box)
    if image.shape[2] in _local.kinds:
        return _by_simd(image, sides, box)
    planes = np.split(image, image.shape[2], axis=2)
    return np.concatenate([_by_simd(plane, sides, box) for plane in planes], axis=2)


def _around(
    image: NDArray[np.uint8], sides: tuple[int, int], box: Box
) -> tuple[NDArray[np.uint8], Box]:
    """The part of an image that a box depends on, and the box in it."""
    (left, top, right, bottom), (height, width) = box, image.shape[:2]
    down = math.ceil(max((bottom - top) / sides[0], 1)) + 1
    across = math.ceil(max((right - left) / sides[1], 1)) + 1
    from_row, to_row = max(int(top) - down, 0), min(math.ceil(bottom) + down, height)
    from_column, to_column = max(int(left) - across, 0), min(math.ceil(right) + across, width)
    moved = (left - from_column, top - from_row, right - from_column, bottom - from_row)
    return image[from_row:to_row, from_column:to_column], moved


def _by_simd(
    image: NDArray[np.uint8], sides: tuple[int, int], box: Box | None
) -> NDArray[np.uint8]:
    height, width, channels = image.shape
    kind, options = _local.kinds[channels], _local.options
    if box is not None:
        left, top, right, bottom = box
        options = options.copy()
        # Rounding must not bring the box out of the image.
        across, down = min(right - left, width - left), min(bottom - top, height - top)
        options.crop_box = simd.CropBox(left, top, across, down)
    result = _local.result(sides[1], sides[0], kind)
    source = simd.ImageData(width, height, kind, image.tobytes())
    _local.resizer.resize(source, result, options)
    return np.frombuffer(result.get_buffer(), np.uint8).reshape(*sides, channels)


def _by_pillow(
    image: NDArray[np.uint8], sides: tuple[int, int], box: Box | None
) -> NDArray[np.uint8]:
    if image.shape[2] == 3:
        return _picture(image, sides, box)
    planes = (image[:, :, channel] for channel in range(image.shape[2]))
    return np.stack([_picture(plane, sides, box) for plane in planes], axis=-1)


def _picture(
    image: NDArray[np.uint8], sides: tuple[int, int], box: Box | None
) -> NDArray[np.uint8]:
    """Grey `[h, w]` or colour `[h, w, 3]`."""
    picture = Image.fromarray(np.ascontiguousarray(image))
    return np.asarray(picture.resize(sides[::-1], Image.Resampling.BILINEAR, box))
