"""Splits of images of any size, made into splits of one image shape.

Evaluation, and training with `data.crop=center`, take the middle of each image: a `CenterSplit`.
Training with `data.crop=random_resized(...)` takes another part at each step: a `RandomSplit`.
Features have no size, and stay as they are.

What is decoded is kept where `data.cache` says, so that it is decoded once: a `CenterSplit` keeps
its results, a `RandomSplit` the images as decoded. JPEG images that are far larger than needed are
decoded at a half, a quarter or an eighth of their sides.
"""

import abc
import dataclasses
import functools
import math
import zlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from jaxtrain import operations
from jaxtrain.config.schema import DataConfig
from jaxtrain.data import bits, cache, crops, examples, resize
from jaxtrain.data.split import Identity, Progress, RawSplit, Split
from jaxtrain.errors import DataError, UsageError


@dataclasses.dataclass(frozen=True)
class Sizing:
    """What the config says of sizes.

    Attributes:
        sides: (height, width) of every image; None: as they are.
        crop: the part that is trained on.
        eval_crop: share of the shorter side that the centre crop keeps.
        cache: `data.cache`.
        cache_path: `data.cache_path`.
    """

    sides: tuple[int, int] | None
    crop: crops.Center | crops.RandomResized
    eval_crop: float
    cache: str
    cache_path: str | None


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
    sides = None if config.image_size is None else (config.image_size[0], config.image_size[-1])
    return Sizing(sides, parsed[0], config.eval_crop, config.cache, config.cache_path)


def for_training(opened: Split | RawSplit, sizing: Sizing) -> Split:
    """The split as it is trained on.

    Raises:
        UsageError: its images vary in size, and none is set; or it holds features, and one is.
    """
    if isinstance(sizing.crop, crops.Center) or _has_features(opened):
        return for_evaluation(opened, sizing)
    return RandomSplit(_raw(opened), _sides(opened, sizing), sizing.crop, sizing)


def for_evaluation(opened: Split | RawSplit, sizing: Sizing) -> Split:
    """The split as it is evaluated on; itself if that changes nothing.

    Raises:
        UsageError: as for `for_training`.
    """
    if isinstance(opened, Split) and _has_features(opened):
        _refuse_for_features(opened, sizing)
        return opened
    sides = _sides(opened, sizing)
    if isinstance(opened, Split) and opened.image_shape[:2] == sides and sizing.eval_crop == 1:
        return opened
    return CenterSplit(_raw(opened), sides, sizing.eval_crop, sizing)


class _SizedSplit(Split, abc.ABC):
    """Images of a `RawSplit`, all brought to one shape.

    Args:
        raw: the images.
        sides: (height, width) to bring them to.
        enough: (height, width) from which on an image need not be larger.
    """

    image_shape: tuple[int, int, int]

    def __init__(self, raw: RawSplit, sides: tuple[int, int], enough: tuple[int, int]):
        super().__init__(raw.name, raw.labels, (*sides, raw.channels), raw.origin)
        self.left_out = raw.left_out
        self._raw = raw
        self._sides = sides
        # What has one shape keeps it.
        self._enough = enough if raw.image_shape is None else None
        self._images: cache.Images

    def file_of(self, index: int) -> str | None:
        """Asks the images' source."""
        return self._raw.file_of(index)

    def prepare(self, progress: Progress, rows: NDArray[np.int64] | None = None) -> None:
        """Makes the disk cache, if that is asked for."""
        self._images.prepare(progress, rows)

    def _checksum(self) -> int:
        return zlib.crc32(f"{self._raw.fingerprint} {self.image_shape} {self._how}".encode())

    @property
    @abc.abstractmethod
    def _how(self) -> str:
        """What distinguishes its images from those of other splits of the same examples."""

    def _named(self, error: Exception, index: int) -> DataError:
        said = str(error) if isinstance(error, DataError) else repr(error)
        return DataError(f"example {index} of split {self._raw.name}: {said}")

    def _decode(self, index: int) -> NDArray[np.uint8]:
        """One image as it is, or as small as is enough, `[h, w, C]`."""
        try:
            image = self._raw.decode(index, self._enough)
        except Exception as error:
            raise self._named(error, index) from error
        expected = self._raw.image_shape or (*image.shape[:2], self._raw.channels)
        if image.shape != expected:
            found, declared = ("x".join(map(str, shape)) for shape in (image.shape, expected))
            raise DataError(
                f"example {index} of split {self._raw.name} is {found}, but its source says "
                f"{declared}; mend the example"
            )
        return image


class CenterSplit(_SizedSplit):
    """The middle of every image.

    Args:
        raw: the images.
        sides: (height, width) to bring them to.
        share: what is kept of the shorter side.
        sizing: says where its images are kept.
    """

    def __init__(self, raw: RawSplit, sides: tuple[int, int], share: float, sizing: Sizing):
        super().__init__(raw, sides, crops.enough_for_center(sides, share))
        self._share = share
        how = f"{self._how} to {self._sides} by {resize.NAME}"
        self._images = _kept(self._make, raw, self.image_shape, how, sizing)

    @property
    def _how(self) -> str:
        return f"center {self._share}"

    def read(
        self, indices: NDArray[np.integer], row_seeds: NDArray[np.uint64] | None = None
    ) -> NDArray[np.uint8]:
        """Makes what it does not keep."""
        if isinstance(self._images, cache.All):
            return self._images.read(indices)
        images = map(self._images.get, indices.tolist())
        return _stacked(images, len(indices), self.image_shape)

    @property
    def images(self) -> NDArray[np.uint8]:
        """All images; the kept ones themselves, not to be written to."""
        return self._images.all() if isinstance(self._images, cache.All) else super().images

    def _make(self, index: int) -> NDArray[np.uint8]:
        return crops.center(self._decode(index), self._sides, self._share)


class RandomSplit(_SizedSplit):
    """A random part of every image, another one for each row seed.

    Args:
        raw: the images.
        sides: (height, width) to bring the parts to.
        crop: which parts.
        sizing: says where the images are kept, as they are before a part is taken.
    """

    random = True

    def __init__(
        self, raw: RawSplit, sides: tuple[int, int], crop: crops.RandomResized, sizing: Sizing
    ):
        super().__init__(raw, sides, crop.enough(sides))
        self._crop = crop
        self._seen = np.zeros(self.size, bool)
        self._images = cache.Remade(self._decode)
        if not isinstance(raw, _Decoded):
            how = f"whole, or at least {self._enough}"
            self._images = _kept(self._decode, raw, raw.image_shape, how, sizing)

    @property
    def _how(self) -> str:
        return f"random_resized {dataclasses.astuple(self._crop)}"

    def read(
        self, indices: NDArray[np.integer], row_seeds: NDArray[np.uint64] | None = None
    ) -> NDArray[np.uint8]:
        """Parts of the images that are functions of the row seeds, which are needed here."""
        if row_seeds is None:
            raise ValueError(f"split {self.name} cannot be read without row seeds")
        draws = bits.uniform(row_seeds, crops.DRAWS).tolist()
        return _stacked(map(self._part, indices.tolist(), draws), len(indices), self.image_shape)

    def _part(self, index: int, draws: Sequence[float]) -> NDArray[np.uint8]:
        image = self._images.find(index)
        # Only when all of it is decoded it is known to be whole.
        if image is None and self._seen[index]:
            choose = functools.partial(crops.random_box, crop=self._crop, draws=draws)
            try:
                part = self._raw.decode_part(index, choose, self._enough)
            except Exception as error:
                raise self._named(error, index) from error
            return crops.resized(part, self._sides)
        if image is None:
            image = self._images.get(index)
            self._seen[index] = True
        return crops.random_resized(image, self._sides, self._crop, draws)


def _kept(
    make: Callable[[int], NDArray[np.uint8]],
    raw: RawSplit,
    shape: tuple[int, int, int] | None,
    how: str,
    sizing: Sizing,
) -> cache.Images:
    """Images where `data.cache` says; those of arrays not on disk, where they may lie already.

    Args:
        make: makes the image of an example.
        raw: the examples.
        shape: of every image; None: they vary.
        how: what `make` does to an example.
        sizing: with `data.cache`.
    """
    if sizing.cache == "none":
        return cache.Remade(make)
    if sizing.cache == "disk" and not isinstance(raw, _Decoded):
        folder = cache.cache_folder(sizing.cache_path)
        return cache.Disk(folder, make, raw, how=how, shape=shape)
    limit = cache.memory_limit()
    if shape is not None and raw.size * math.prod(shape) <= limit:
        return cache.All(make, raw.size, shape)
    return cache.Some(make, raw.size, limit)


class _Decoded(RawSplit):
    """A split whose images have one shape already."""

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


def _sides(opened: Split | RawSplit, sizing: Sizing) -> tuple[int, int]:
    if sizing.sides is not None:
        return sizing.sides
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
        ("crop", sizing.crop, crops.Center()),
        ("eval_crop", sizing.eval_crop, 1.0),
    ):
        if value != default:
            raise UsageError(
                f"data.{key} is for images, but an example of split {split.name} is "
                f"{examples.shape_text(split.image_shape)} ({split.origin}); unset it, or give "
                "images"
            )


def _stacked(
    images: Iterable[NDArray[np.uint8]], count: int, shape: tuple[int, int, int]
) -> NDArray[np.uint8]:
    """`[count, H, W, C]`; none, too."""
    stacked = np.empty((count, *shape), np.uint8)
    for place, image in zip(stacked, images, strict=True):
        place[...] = image
    return stacked
