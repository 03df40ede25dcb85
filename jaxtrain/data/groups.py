"""Images and features for `jaxtrain predict`: those of files, and the rows of one array."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from jaxtrain.data import idx
from jaxtrain.data.decode import decode
from jaxtrain.data.examples import (
    NUMBER_KINDS,
    as_features,
    is_image,
    not_finite,
    shape_text,
)
from jaxtrain.data.listing import content_of
from jaxtrain.errors import DataError, UsageError, one_line


class Wanted(NamedTuple):
    """How image files are decoded; see `decode`."""

    channels: int
    background: tuple[int, int, int]
    enough: tuple[int, int] | None


class Group(Protocol):
    """Examples that are read alike."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """What an example is called."""

    def check(self, image_shape: tuple[int, ...]) -> None:
        """Refuses examples that cannot be brought to a shape.

        Raises:
            UsageError: names what they are, and what to do.
        """

    def read(self, index: int, wanted: Wanted) -> NDArray[Any]:
        """An image uint8 `[H, W, C]` of any size, or features float32 `[D]`.

        Raises:
            DataError: it cannot be read, or holds no numbers.
        """


class Files:
    """Image files."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, index: int) -> str:
        """See `Group`."""
        return self.paths[index]

    def check(self, image_shape: tuple[int, ...]) -> None:
        """See `Group`."""
        if not is_image(image_shape):
            raise UsageError(
                f"{self.paths[0]} is no array, but the model takes {shape_text(image_shape)}; give "
                f"a .npy file of numbers [N, {image_shape[0]}]"
            )

    def read(self, index: int, wanted: Wanted) -> NDArray[np.uint8]:
        """See `Group`."""
        return decode(
            content_of(self.paths[index]),
            wanted.channels,
            background=wanted.background,
            enough=wanted.enough,
        )


class Array:
    """Images uint8 `[N, H, W, C]` or features `[N, D]` of one file, opened when they are read.

    Thousands of files that are kept open would be more than a process may have.
    """

    def __init__(self, path: str, opened: Callable[[], NDArray[Any]]):
        self._path = path
        self._opened = opened
        self._shape = opened().shape

    def __len__(self) -> int:
        return self._shape[0]

    def name(self, index: int) -> str:
        """See `Group`."""
        return f"{self._path}[{index}]"

    def check(self, image_shape: tuple[int, ...]) -> None:
        """See `Group`."""
        count, *shape = self._shape
        if len(shape) != len(image_shape) or (shape != [*image_shape] and len(shape) == 1):
            raise UsageError(
                f"{self._path} holds {count} examples of {shape_text(shape)}, but the model takes "
                f"{shape_text(image_shape)}; give examples like those it was trained on"
            )
        if shape[-1] != image_shape[-1]:
            height, width, channels = shape
            raise UsageError(
                f"{self._path} holds {count} images of {height}x{width} and {channels} channels, "
                f"but the model takes {image_shape[-1]} channels; convert them"
            )

    def read(self, index: int, wanted: Wanted) -> NDArray[Any]:
        """See `Group`."""
        values: NDArray[Any] = self._opened()[index]
        if is_image(self._shape[1:]):
            return values
        if (first := not_finite(values)) is not None:
            raise DataError(f"feature {first[0]} is {values[first]}, which is no finite float32")
        return as_features(values)


def idx_images(path: str) -> NDArray[np.uint8]:
    """Images `[N, H, W, C]` of an IDX file."""
    return idx.read_images(Path(path))


def npy(path: str) -> NDArray[Any]:
    """Images `[N, H, W, C]` or features `[N, D]` of a NumPy file, memory-mapped.

    Raises:
        UsageError: it is damaged, or holds neither.
    """
    try:
        images = np.asarray(np.lib.format.open_memmap(path, mode="r"))
    except PermissionError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; make it readable") from error
    except Exception as error:  # NumPy has Python parse the header
        if zipfile.is_zipfile(path):
            raise UsageError(
                f"{path} is no .npy array, but an archive of some; save the one to classify by "
                "itself, as by np.save('x.npy', x)"
            ) from error
        raise UsageError(f"{path} is no whole .npy array: {one_line(error)}") from error
    what = f"{path} holds {images.dtype} of shape {list(images.shape)}"
    has_features = images.ndim == 2 and images.dtype.kind in NUMBER_KINDS
    if not has_features and (images.dtype != np.uint8 or images.ndim not in (3, 4)):
        raise UsageError(
            f"{what}; images are uint8 [N, H, W, C], or [N, H, W] if grey, features numbers [N, D]"
        )
    if 0 in images.shape:
        raise UsageError(f"{what}, which is no image")
    if has_features:
        return images
    return images if images.ndim == 4 else images[..., np.newaxis]
