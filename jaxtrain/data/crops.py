"""Parts of one image, brought to a size: where they lie, and their pixels by `resize`."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxtrain.data.resize import Box, resize

_DRAWS_A_TRY: Final = 4
DRAWS: Final = 10 * _DRAWS_A_TRY  # random numbers that a random part takes
_RATIO_LIMIT: Final = 1000


@dataclasses.dataclass(frozen=True)
class Center:
    """`center`: the middle of the image."""


@dataclasses.dataclass(frozen=True)
class RandomResized:
    """`random_resized`: a part of random area, shape and place (Szegedy et al., 2015).

    As torchvision's RandomResizedCrop: ten tries of an area, uniform between two shares of the
    image's, and of a width over height, log-uniform in `ratio`; where none fits, the largest part
    in the middle whose width over height is in `ratio`.
    """

    min_area: float = 0.08
    max_area: float = 1.0
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        if not 0 < self.min_area <= self.max_area <= 1:
            raise ValueError("the areas must be above 0, at most 1 and in order")
        if not 1 / _RATIO_LIMIT <= self.ratio[0] <= self.ratio[1] <= _RATIO_LIMIT:
            raise ValueError(f"ratio must be between 1/{_RATIO_LIMIT} and {_RATIO_LIMIT}, in order")

    def enough(self, sides: tuple[int, int]) -> tuple[int, int]:
        """The (height, width) from which on an image need not be larger for parts of `sides`.

        The smallest part has at least as many pixels as it is brought to then, and one of mean area
        at least twice as many along each side.
        """
        ratio = sides[1] / sides[0]
        longest = max(self.ratio[1] / ratio, ratio / self.ratio[0], 1)
        mean_area = (self.min_area + self.max_area) / 2
        factor = math.sqrt(max(longest / self.min_area, 4 * max(ratio, 1 / ratio) / mean_area))
        return math.ceil(sides[0] * factor), math.ceil(sides[1] * factor)


CROPS: Final[dict[str, type[Center] | type[RandomResized]]] = {
    "center": Center,
    "random_resized": RandomResized,
}


def enough_for_center(sides: tuple[int, int], share: float) -> tuple[int, int]:
    """The (height, width) from which on an image need not be larger for `center`.

    It has at least twice as many pixels along each side as it is resized to then.
    """
    return 2 * round(sides[0] / share), 2 * round(sides[1] / share)


def center(image: NDArray[np.uint8], sides: tuple[int, int], share: float) -> NDArray[np.uint8]:
    """The middle of an image at another size.

    As torchvision's Resize and CenterCrop, in one go: the image is resized, its aspect kept, so
    that the least of it that covers `sides` / `share` remains, and of that the middle `sides` are
    taken. An image that is to stay as it is comes back itself.

    Args:
        image: uint8 `[h, w, C]`.
        sides: (height, width) of the result.
        share: what is kept of the shorter side, in (0, 1].

    Returns:
        uint8 `[height, width, C]`.
    """
    box = center_box(image.shape[:2], sides, share)
    whole = (0.0, 0.0, image.shape[1], image.shape[0])
    if image.shape[:2] == sides and box == whole:
        return image
    return resize(image, sides, box)


def center_box(size: tuple[int, ...], sides: tuple[int, int], share: float) -> Box:
    """The part of an image of `size` (height, width) that `center` takes; inside the image."""
    (height, width), (wanted_height, wanted_width) = size, sides
    least_height, least_width = (round(side / share) for side in sides)
    if least_height * width >= least_width * height:
        full_height, full_width = least_height, least_height * width // height
    else:
        full_height, full_width = least_width * height // width, least_width
    top = round((full_height - wanted_height) / 2)
    left = round((full_width - wanted_width) / 2)
    return (
        left * width / full_width,
        top * height / full_height,
        (left + wanted_width) * width / full_width,
        (top + wanted_height) * height / full_height,
    )


def random_resized(
    image: NDArray[np.uint8],
    sides: tuple[int, int],
    crop: RandomResized,
    draws: Sequence[float],
) -> NDArray[np.uint8]:
    """A random part of an image, resized without regard to its aspect.

    Args:
        image: uint8 `[h, w, C]`.
        sides: (height, width) of the result.
        crop: which parts.
        draws: `DRAWS` numbers in [0, 1), that the part is a function of.

    Returns:
        uint8 `[height, width, C]`.
    """
    left, top, right, bottom = random_box(image.shape[:2], crop, draws)
    return resized(image[top:bottom, left:right], sides)


def resized(part: NDArray[np.uint8], sides: tuple[int, int]) -> NDArray[np.uint8]:
    """A part at another size (height, width), without regard to its aspect."""
    return part if part.shape[:2] == sides else resize(part, sides)


def random_box(
    size: tuple[int, ...], crop: RandomResized, draws: Sequence[float]
) -> tuple[int, int, int, int]:
    """The part of an image of `size` (height, width) that `random_resized` takes."""
    height, width = size
    low, high = map(math.log, crop.ratio)
    for start in range(0, DRAWS, _DRAWS_A_TRY):
        area, ratio, down, across = draws[start : start + _DRAWS_A_TRY]
        area = height * width * (crop.min_area + area * (crop.max_area - crop.min_area))
        ratio = math.exp(low + ratio * (high - low))
        part_width, part_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < part_width <= width and 0 < part_height <= height:
            top = int(down * (height - part_height + 1))
            left = int(across * (width - part_width + 1))
            return left, top, left + part_width, top + part_height
    part_width = min(width, max(round(height * crop.ratio[1]), 1))
    part_height = min(height, max(round(width / crop.ratio[0]), 1))
    top, left = (height - part_height) // 2, (width - part_width) // 2
    return left, top, left + part_width, top + part_height
