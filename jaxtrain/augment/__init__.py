"""Random changes of training images, on the device.

`build` makes an `Augment` of `data.augment`, as in 'flip|pad_crop(4)|cutout(8)'. What it does to an
image depends on the seed, the step, the operation and the image's row in the global batch alone, so
it is the same on any number of devices and in any part of a batch. What mixes two images comes
last, and depends on both.
"""

import dataclasses
import functools
import zlib
from typing import Final

import jax
import numpy as np

from jaxtrain import operations
from jaxtrain.augment.apart import apart
from jaxtrain.augment.blur import Blur
from jaxtrain.augment.colour import Brightness, Contrast, Greyscale, Hue, Noise, Saturation
from jaxtrain.augment.draws import Operation
from jaxtrain.augment.elastic import Elastic
from jaxtrain.augment.erasing import Cutout, RandomErasing
from jaxtrain.augment.geometry import Affine, Flip, PadCrop
from jaxtrain.augment.mixing import Cutmix, Mixing, Mixup, MixupOrCutmix, partners
from jaxtrain.augment.policies import RandAugment, TrivialAugment
from jaxtrain.config.values import show
from jaxtrain.errors import UsageError

__all__ = ["MIXINGS", "OPERATIONS", "Augment", "build", "partners"]

OPERATIONS: Final[dict[str, type[Operation]]] = {
    "flip": Flip,
    "pad_crop": PadCrop,
    "cutout": Cutout,
    "random_erasing": RandomErasing,
    "affine": Affine,
    "brightness": Brightness,
    "contrast": Contrast,
    "saturation": Saturation,
    "hue": Hue,
    "greyscale": Greyscale,
    "noise": Noise,
    "blur": Blur,
    "elastic": Elastic,
    "randaugment": RandAugment,
    "trivialaugment": TrivialAugment,
}
MIXINGS: Final[dict[str, type[Mixing]]] = {
    "mixup": Mixup,
    "cutmix": Cutmix,
    "mixup_or_cutmix": MixupOrCutmix,
}
_TABLE: Final[dict[str, type[Operation | Mixing]]] = {**OPERATIONS, **MIXINGS}
_NAMES: Final[dict[type, str]] = {kind: name for name, kind in _TABLE.items()}


@dataclasses.dataclass(frozen=True)
class Augment:
    """Operations in the order in which they are done.

    Attributes:
        operations: instances of what is in `OPERATIONS`.
        mixing: what then mixes the images of a batch, if anything: of what is in `MIXINGS`.
    """

    operations: tuple[Operation, ...]
    mixing: Mixing | None = None

    @property
    def together(self) -> int:
        """How many rows have to stay neighbours, the first one's number a multiple of it."""
        return 1 if self.mixing is None else 2

    def check(self, image_shape: tuple[int, ...]) -> None:
        """Refuses examples that an operation cannot change.

        Args:
            image_shape: of one: height, width and channels; or the number of features alone.

        Raises:
            UsageError: names the operation and what it needs.
        """
        every: list[Operation | Mixing] = [*self.operations]
        if self.mixing is not None:
            every.append(self.mixing)
        for operation in every:
            complaint = _complaint(operation, image_shape)
            if complaint is not None:
                raise UsageError(f"data.augment: {_NAMES[type(operation)]}: {complaint}")

    def __call__(self, key: jax.Array, image: jax.Array, row: jax.Array) -> jax.Array:
        """The changed images, not yet mixed.

        Args:
            key: typed key `[]`, `step_key(seed, step, "augment")`.
            image: float32 `[batch, H, W, C]` in 0..1, of a shape that `check` takes.
            row: int32 `[batch]`, each image's row in the global batch.

        Returns:
            Images of the same shape and dtype, in 0..1; without operations the very array.
        """
        for position, operation in enumerate(self.operations):
            own = _own(key, position, operation)
            image = apart(own, functools.partial(operation, own), image, row)
        return image

    def mix(
        self, key: jax.Array, image: jax.Array, row: jax.Array, mask: jax.Array
    ) -> tuple[jax.Array, jax.Array | None]:
        """The images mixed, if they are to be.

        Args:
            key: as above.
            image: what `__call__` gives, an even number of images.
            row: as above, `together` of them neighbours.
            mask: bool `[batch]`; False rows are mixed with no other.

        Returns:
            Images of the same shape, dtype and range; and float32 `[batch]`, how much of each is
            its own and not its neighbour's, or None if nothing is ever mixed.
        """
        if self.mixing is None:
            return image, None
        return self.mixing(_own(key, len(self.operations), self.mixing), image, row, mask)


def _complaint(operation: Operation | Mixing, image_shape: tuple[int, ...]) -> str | None:
    if len(image_shape) == 1 and not isinstance(operation, Mixup):
        return f"changes images, but the examples are {image_shape[0]} features each; leave it out"
    return operation.complaint(image_shape) if isinstance(operation, Operation) else None


def _own(key: jax.Array, position: int, operation: Operation | Mixing) -> jax.Array:
    """An operation's key, of its place and its name."""
    name = np.uint32(zlib.crc32(_NAMES[type(operation)].encode()))
    return jax.random.fold_in(jax.random.fold_in(key, position), name)


def build(text: str) -> Augment:
    """The operations of `data.augment`.

    Args:
        text: `NAME` or `NAME(VALUE, ARGUMENT=VALUE)`, with `|` between them; empty for none.

    Raises:
        UsageError: an unknown operation or argument, a bad value, or one of `MIXINGS` before the
            end.
    """
    parsed = operations.parse(text, _TABLE, "data.augment")
    mixings = [each for each in parsed if isinstance(each, Mixing)]
    if mixings and (len(mixings) > 1 or parsed[-1] is not mixings[0]):
        raise UsageError(
            f"data.augment={show(text)}: {_NAMES[type(mixings[0])]} mixes finished images; put it "
            f"last, and only one of {', '.join(MIXINGS)}"
        )
    return Augment(
        tuple(each for each in parsed if isinstance(each, Operation)),
        next((mixing for mixing in mixings if not mixing.idle), None),
    )
