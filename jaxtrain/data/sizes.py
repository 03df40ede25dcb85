"""Splits of images of any size, made into splits of one image shape.

Evaluation, and training with `data.crop=center`, take the middle of each image: a `CenterSplit`.
Training with `data.crop=random_resized(...)` takes another part at each step: a `RandomSplit`.
Features have no size, and stay as they are.

What is decoded is kept where `data.cache` says, so that it is decoded once: a `CenterSplit` keeps
its results, a `RandomSplit` the images as decoded. JPEG images that are far larger than needed are
decoded at a half, a quarter or an eighth of their sides.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jaxtrain import operations
from jaxtrain.config.schema import DataConfig
from jaxtrain.data import crops, examples
from jaxtrain.data.cache import Cache
from jaxtrain.data.sized import CenterSplit, RandomSplit
from jaxtrain.data.split import Identity, RawSplit, Split
from jaxtrain.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Sizing:
    """What the config says of sizes.

    Attributes:
        sides: (height, width) of every image; None: as they are.
        eval_sides: that of those that are evaluated.
        crop: the part that is trained on.
        eval_crop: share of the shorter side that the centre crop keeps.
        cache: where decoded images are kept.
    """

    sides: tuple[int, int] | None
    eval_sides: tuple[int, int] | None
    crop: crops.Center | crops.RandomResized
    eval_crop: float
    cache: Cache


def sizing(config: DataConfig) -> Sizing:
    """The sizes of a config.

    Raises:
        UsageError: `data.crop` is not one of `crops.CROPS`.
    """
    parsed = operations.parse(config.crop, crops.CROPS, "data.crop")
    if len(parsed) != 1:
        raise UsageError(
            f"data.crop={config.crop!r} holds {len(parsed)} crops; write one, "
            f"{' or '.join(crops.CROPS)}"
        )
    sides, eval_sides = (
        None if size is None else (size[0], size[-1])
        for size in (config.image_size, config.eval_image_size or config.image_size)
    )
    cache = Cache(config.cache, config.cache_path)
    return Sizing(sides, eval_sides, parsed[0], config.eval_crop, cache)


def for_training(opened: Split | RawSplit, sizing: Sizing) -> Split:
    """The split as it is trained on.

    Raises:
        UsageError: its images vary in size, and none is set; or it holds features, and one is.
    """
    if isinstance(sizing.crop, crops.Center) or _has_features(opened):
        return _center(opened, sizing, sizing.sides)
    return RandomSplit(_raw(opened), _sides(opened, sizing.sides), sizing.crop, sizing.cache)


def for_evaluation(opened: Split | RawSplit, sizing: Sizing) -> Split:
    """The split as it is evaluated on; itself if that changes nothing.

    Raises:
        UsageError: as for `for_training`.
    """
    return _center(opened, sizing, sizing.eval_sides)


def _center(opened: Split | RawSplit, sizing: Sizing, sides: tuple[int, int] | None) -> Split:
    if isinstance(opened, Split) and _has_features(opened):
        _refuse_for_features(opened, sizing)
        return opened
    sides = _sides(opened, sides)
    if isinstance(opened, Split) and opened.image_shape[:2] == sides and sizing.eval_crop == 1:
        return opened
    return CenterSplit(_raw(opened), sides, sizing.eval_crop, sizing.cache)


class _Decoded(RawSplit):
    """A split whose images have one shape already."""

    is_decoded = True

    def __init__(self, split: Split):
        self.name = split.name
        self.size = split.size
        self.labels = split.labels
        height, width, self.channels = split.image_shape
        self.image_shape = (height, width, self.channels)
        self.origin = split.origin
        self.left_out = split.left_out
        self._split = split

    def file_of(self, index: int) -> str | None:
        return self._split.file_of(index)

    @functools.cached_property
    def fingerprint(self) -> str:
        return self._split.fingerprint

    def identities(self) -> Sequence[Identity]:
        raise NotImplementedError("what lies in arrays is not kept on disk")

    def decode(self, index: int, enough: tuple[int, int] | None = None) -> NDArray[np.uint8]:
        image: NDArray[np.uint8] = self._split.read(np.array([index]))[0]
        return image


def _raw(opened: Split | RawSplit) -> RawSplit:
    return _Decoded(opened) if isinstance(opened, Split) else opened


def _sides(opened: Split | RawSplit, sides: tuple[int, int] | None) -> tuple[int, int]:
    if sides is not None:
        return sides
    if opened.image_shape is None:
        raise UsageError(
            f"the images of split {opened.name} vary in size ({opened.origin}); set "
            "data.image_size to the side, or height,width, that they are to be brought to"
        )
    height, width, _ = opened.image_shape
    return height, width


def _has_features(opened: Split | RawSplit) -> bool:
    return isinstance(opened, Split) and not examples.is_image(opened.image_shape)


def _refuse_for_features(split: Split, sizing: Sizing) -> None:
    for key, value, default in (
        ("image_size", sizing.sides, None),
        ("eval_image_size", sizing.eval_sides, None),
        ("crop", sizing.crop, crops.Center()),
        ("eval_crop", sizing.eval_crop, 1.0),
    ):
        if value != default:
            raise UsageError(
                f"data.{key} is for images, but an example of split {split.name} is "
                f"{examples.shape_text(split.image_shape)} ({split.origin}); unset it, or give "
                "images"
            )
