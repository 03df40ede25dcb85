"""Random changes of training images, on the device.

`build` makes an `Augment` of `data.augment`, as in 'flip|pad_crop(4)|cutout(8)'. What it does to an
image depends on the seed, the step, the operation and the image's row in the global batch alone, so
it is the same on any number of devices and in any part of a batch.
"""

import dataclasses
import functools
import zlib
from typing import Final

import jax
import numpy as np
from jax import lax

from jaxtrain import operations
from jaxtrain.augment.colour import Brightness, Contrast, Noise, Saturation
from jaxtrain.augment.draws import Operation
from jaxtrain.augment.erasing import Cutout, RandomErasing
from jaxtrain.augment.geometry import Affine, Flip, PadCrop
from jaxtrain.errors import UsageError

__all__ = ["OPERATIONS", "Augment", "build"]

OPERATIONS: Final[dict[str, type[Operation]]] = {
    "flip": Flip,
    "pad_crop": PadCrop,
    "cutout": Cutout,
    "random_erasing": RandomErasing,
    "affine": Affine,
    "brightness": Brightness,
    "contrast": Contrast,
    "saturation": Saturation,
    "noise": Noise,
}
_NAMES: Final = {kind: name for name, kind in OPERATIONS.items()}


@dataclasses.dataclass(frozen=True)
class Augment:
    """Operations in the order in which they are done.

    Attributes:
        operations: instances of what is in `OPERATIONS`.
    """

    operations: tuple[Operation, ...]

    def check(self, image_shape: tuple[int, ...]) -> None:
        """Refuses images that an operation cannot change.

        Args:
            image_shape: height, width and channels.

        Raises:
            UsageError: names the operation and what it needs.
        """
        for operation in self.operations:
            complaint = operation.complaint(image_shape)
            if complaint is not None:
                raise UsageError(f"data.augment: {_NAMES[type(operation)]}: {complaint}")

    def __call__(self, key: jax.Array, image: jax.Array, row: jax.Array) -> jax.Array:
        """The changed images.

        Args:
            key: typed key `[]`, `step_key(seed, step, "augment")`.
            image: float32 `[batch, H, W, C]` in 0..1, of a shape that `check` takes.
            row: int32 `[batch]`, each image's row in the global batch.

        Returns:
            Images of the same shape and dtype, in 0..1; without operations the very array.
        """
        for position, operation in enumerate(self.operations):
            name = np.uint32(zlib.crc32(_NAMES[type(operation)].encode()))
            own = jax.random.fold_in(jax.random.fold_in(key, position), name)
            image = lax.platform_dependent(
                own, image, row, cpu=functools.partial(_apart, operation), default=operation
            )
        return image


def _apart(operation: Operation, key: jax.Array, image: jax.Array, row: jax.Array) -> jax.Array:
    """The operation, compiled apart from what comes before and after it.

    On the CPU backend XLA would fuse operations into loops that it cannot vectorise and that
    compute each pixel several times: eight operations take 5 ms apart and 75 ms together. It fuses
    nothing into a branch, and drops optimization barriers before it fuses.
    """
    always = jax.random.key_data(key)[0] >> 31 < 2  # which XLA does not see
    return lax.cond(always, lambda given: operation(key, given, row), lambda given: given, image)


def build(text: str) -> Augment:
    """The operations of `data.augment`.

    Args:
        text: `NAME` or `NAME(VALUE, ARGUMENT=VALUE)`, with `|` between them; empty for none.

    Raises:
        UsageError: an unknown operation or argument, or a bad value.
    """
    return Augment(operations.parse(text, OPERATIONS, "data.augment"))
