"""Splits whose images are brought to one shape: the middle of each, or a random part."""

import abc
import dataclasses
import functools
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from jaxtrain.data import bits, crops, resize
from jaxtrain.data.cache import All, Cache, Images, Remade
from jaxtrain.data.split import Progress, RawSplit, Split
from jaxtrain.errors import DataError


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
        self._images: Images

    def file_of(self, index: int) -> str | None:
        """Asks the images' source."""
        return self._raw.file_of(index)

    def prepare(self, progress: Progress, rows: NDArray[np.int64] | None = None) -> None:
        """Makes the disk cache, if that is asked for."""
        self._images.prepare(progress, rows)

    def check_room(self, rows: NDArray[np.int64] | None = None, besides: int = 0) -> int:
        """Looks whether the disk cache has room, if that is asked for."""
        return self._images.check_room(rows, besides)

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
        cache: where its images are kept.
    """

    def __init__(self, raw: RawSplit, sides: tuple[int, int], share: float, cache: Cache):
        super().__init__(raw, sides, crops.enough_for_center(sides, share))
        self._share = share
        how = f"{self._how} to {self._sides} by {resize.NAME}"
        self._images = cache.images(self._make, raw, how=how, shape=self.image_shape)

    @property
    def _how(self) -> str:
        return f"center {self._share}"

    def read(
        self, indices: NDArray[np.integer], row_seeds: NDArray[np.uint64] | None = None
    ) -> NDArray[np.uint8]:
        """Makes what it does not keep."""
        if isinstance(self._images, All):
            return self._images.read(indices)
        images = map(self._images.get, indices.tolist())
        return _stacked(images, len(indices), self.image_shape)

    @property
    def images(self) -> NDArray[np.uint8]:
        """All images; the kept ones themselves, not to be written to."""
        return self._images.all() if isinstance(self._images, All) else super().images

    def _make(self, index: int) -> NDArray[np.uint8]:
        return crops.center(self._decode(index), self._sides, self._share)


class RandomSplit(_SizedSplit):
    """A random part of every image, another one for each row seed.

    Args:
        raw: the images.
        sides: (height, width) to bring the parts to.
        crop: which parts.
        cache: where the images are kept, as they are before a part is taken.
    """

    random = True

    def __init__(
        self, raw: RawSplit, sides: tuple[int, int], crop: crops.RandomResized, cache: Cache
    ):
        super().__init__(raw, sides, crop.enough(sides))
        self._crop = crop
        self._seen = np.zeros(self.size, bool)
        self._images = Remade(self._decode)
        if not raw.is_decoded:
            how = f"whole, or at least {self._enough}"
            self._images = cache.images(self._decode, raw, how=how, shape=raw.image_shape)

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


def _stacked(
    images: Iterable[NDArray[np.uint8]], count: int, shape: tuple[int, int, int]
) -> NDArray[np.uint8]:
    """`[count, H, W, C]`; none, too."""
    stacked = np.empty((count, *shape), np.uint8)
    for place, image in zip(stacked, images, strict=True):
        place[...] = image
    return stacked
