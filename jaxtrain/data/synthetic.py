"""Random images or features that can be learned, made as they are read: for trials."""

import functools
import zlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxtrain.config.schema import DataConfig
from jaxtrain.data import bits
from jaxtrain.data.examples import is_image
from jaxtrain.data.split import Split
from jaxtrain.errors import UsageError

_CLASSES: Final = 10
_SPLITS: Final = ("train", "test")
_LABELS: Final = 0
_IMAGES: Final = 1
# Words of random bits made at a time, so that they stay in the processor's cache.
_WORDS_AT_ONCE: Final = 2**14


class Synthetic:
    """The splits `train` and `test` of `data.synthetic`, of as many classes as the config has.

    They also answer to the names of the config's splits, so that a config works without its data.
    """

    def __init__(self, config: DataConfig):
        classes = config.num_classes or len(config.class_names or ()) or _CLASSES
        self.class_names: tuple[str, ...] | None = tuple(map(str, range(classes)))
        self.split_names: tuple[str, ...] = _SPLITS
        self.notes: Sequence[str] = ()
        self._aliases = {config.eval_split or "test": "test", config.train_split: "train"}
        self._shape = config.synthetic.image_shape
        self._sizes = dict(
            zip(_SPLITS, (config.synthetic.examples, config.synthetic.eval_examples), strict=True)
        )

    def open(self, name: str) -> Split:
        """Opens `train` or `test`; takes the time that the labels take."""
        name = name if name in self._sizes else self._aliases.get(name, name)
        if name not in self._sizes:
            raise UsageError(
                f"there is no split {name!r} in data.source=synthetic; "
                f"its splits: {', '.join(_SPLITS)}"
            )
        classes = len(self.class_names or ())
        return SyntheticSplit(name, _SPLITS.index(name), self._sizes[name], self._shape, classes)


class SyntheticSplit(Split):
    """Images or features each of which is a function of the split's number and its index alone.

    Any run of `classes` examples that starts at a multiple of that has each class once. An image is
    noise in 0..127, to which each class adds its own colour: one of a few levels up to 128 in each
    channel. Features are the channels of an image of one pixel, divided by 255.

    Args:
        name: the split's name.
        number: what tells its images from those of other splits.
        size: number of examples.
        image_shape: (height, width, channels), or (features,).
        classes: number of classes.
    """

    def __init__(
        self, name: str, number: int, size: int, image_shape: tuple[int, ...], classes: int
    ):
        index = np.arange(size, dtype=np.uint64)
        round_, place = np.divmod(index, np.uint64(classes))
        turn = bits.at(bits.key(bits.SYNTHETIC, number, _LABELS), round_) % np.uint64(classes)
        labels = ((place + turn) % np.uint64(classes)).astype(np.int32)
        super().__init__(name, labels, image_shape, "data.source=synthetic")
        self._drawn = image_shape if is_image(image_shape) else (1, 1, *image_shape)
        self._number = number
        self._classes = classes
        self._key = bits.key(bits.SYNTHETIC, number, _IMAGES)

    def read(
        self, indices: NDArray[np.integer], row_seeds: NDArray[np.uint64] | None = None
    ) -> NDArray[Any]:
        """Makes the images or features anew."""
        images = self._images(indices)
        if is_image(self.image_shape):
            return images
        return images[:, 0, 0].astype(np.float32) / 255

    def _images(self, indices: NDArray[np.integer]) -> NDArray[np.uint8]:
        images = np.empty((len(indices), *self._drawn), np.uint8)
        pixels = images[0].size if len(images) else 0
        words = -(-pixels // 8)
        at_once = max(_WORDS_AT_ONCE // max(words, 1), 1)
        for start in range(0, len(indices), at_once):
            chunk = indices[start : start + at_once]
            keys = bits.at(self._key, chunk.astype(np.uint64))[:, np.newaxis]
            noise = bits.words(keys, words).astype("<u8", copy=False).view(np.uint8)[:, :pixels]
            rows = noise.reshape(len(chunk), self._drawn[0], -1) >> 1
            rows += self._colours[self.labels[chunk], np.newaxis]
            images[start : start + at_once] = rows.reshape(len(chunk), *self._drawn)
        return images

    @functools.cached_property
    def _colours(self) -> NDArray[np.uint8]:
        """What each class adds to a row of pixels: uint8 `[classes, width * channels]`."""
        _, width, channels = self._drawn
        levels = 1
        while levels**channels < self._classes:
            levels += 1
        # Python's integers: with many channels the powers are large.
        places = [min(levels**place, self._classes) for place in range(channels)]
        digits = np.arange(self._classes)[:, np.newaxis] // np.array(places) % levels
        colours = (digits * 128 // max(levels - 1, 1)).astype(np.uint8)
        return np.tile(colours, width)

    def _checksum(self) -> int:
        made = (1, self._number, self.size, self.image_shape, self._classes)  # 1: this recipe
        return zlib.crc32(repr(made).encode())
