"""Operations that change values and move nothing.

Brightness, contrast, saturation and hue are torchvision's ColorJitter, except that they come in the
order in which they are written. The first three blend the image with another one, by a factor drawn
uniformly from 1 - amount (0 at least) to 1 + amount, and clip to 0..1.
"""

import abc
import dataclasses
from typing import Final

import jax
import jax.numpy as jnp

from jaxtrain.augment.draws import Operation, normal, per_image, symmetric, uniform

# More than this only ever gives black and white.
_MOST = 100

# Luma of ITU-R BT.601.
_LUMA: Final = (0.299, 0.587, 0.114)


@dataclasses.dataclass(frozen=True)
class _Blend(Operation):
    """factor * image + (1 - factor) * the other image.

    Attributes:
        amount: largest change of the factor from 1.
    """

    amount: float

    def __post_init__(self) -> None:
        _check_amount("amount", self.amount)

    @abc.abstractmethod
    def other(self, image: jax.Array) -> jax.Array:
        """What is blended with `[batch, H, W, C]`; broadcasts to it."""

    def __call__(self, key: jax.Array, image: jax.Array, row: jax.Array) -> jax.Array:
        """As `Operation`."""
        low, high = max(0.0, 1.0 - self.amount), 1.0 + self.amount
        return self.blended(image, low + (high - low) * uniform(key, row, 1)[:, 0])

    def blended(self, image: jax.Array, factor: jax.Array) -> jax.Array:
        """Images `[batch, H, W, C]` by their factors `[batch]`: 1 changes nothing, 0 is `other`."""
        share = per_image(factor)
        return jnp.clip(share * image + (1.0 - share) * self.other(image), 0.0, 1.0)


@dataclasses.dataclass(frozen=True)
class Brightness(_Blend):
    """Blends with black."""

    def other(self, image: jax.Array) -> jax.Array:
        """As `_Blend`."""
        return jnp.zeros((1, 1, 1, 1), image.dtype)


@dataclasses.dataclass(frozen=True)
class Contrast(_Blend):
    """Blends with the image's mean luma; its mean value if it has not 3 channels."""

    def other(self, image: jax.Array) -> jax.Array:
        """As `_Blend`."""
        # One axis at a time, which takes a seventh of the time on a CPU.
        mean = image.mean(axis=1, keepdims=True).mean(axis=2, keepdims=True)
        return luma(mean) if image.shape[-1] == len(_LUMA) else mean.mean(axis=3, keepdims=True)


@dataclasses.dataclass(frozen=True)
class Saturation(_Blend):
    """Blends with its own luma."""

    def complaint(self, image_shape: tuple[int, ...]) -> str | None:
        """Refuses images without colour."""
        return _colour_complaint(image_shape)

    def other(self, image: jax.Array) -> jax.Array:
        """As `_Blend`."""
        return luma(image)


@dataclasses.dataclass(frozen=True)
class Hue(Operation):
    """Turns the hue of HSV by an angle drawn uniformly, either way, as torchvision's ColorJitter.

    Attributes:
        amount: largest angle, as a share of the whole circle.
    """

    amount: float

    def __post_init__(self) -> None:
        if not 0 <= self.amount <= 0.5:
            raise ValueError("amount must be between 0 and 0.5")

    def complaint(self, image_shape: tuple[int, ...]) -> str | None:
        """Refuses images without colour."""
        return _colour_complaint(image_shape)

    def __call__(self, key: jax.Array, image: jax.Array, row: jax.Array) -> jax.Array:
        """As `Operation`."""
        turn = self.amount * symmetric(key, row, 1)[:, 0]
        return jnp.where(per_image(turn) == 0, image, turned(image, turn))


def turned(image: jax.Array, turn: jax.Array) -> jax.Array:
    """Images with another hue.

    Args:
        image: float32 `[batch, H, W, 3]` in 0..1.
        turn: float32 `[batch]`, share of the circle from red to green to blue to red.
    """
    # By planes, and with no modulo, which takes a fiftieth of the time on a CPU.
    red, green, blue = jnp.moveaxis(image, -1, 0)
    value = jnp.maximum(jnp.maximum(red, green), blue)
    chroma = value - jnp.minimum(jnp.minimum(red, green), blue)
    # Of two greatest channels either formula gives the same.
    sixths = jnp.where(
        value == red,
        green - blue,
        jnp.where(value == green, blue - red + 2 * chroma, red - green + 4 * chroma),
    )
    sixths = sixths / jnp.where(chroma > 0, chroma, 1.0) + 6 * turn[:, jnp.newaxis, jnp.newaxis]

    def channel(start: float) -> jax.Array:
        at = sixths + start
        at = at - 6 * jnp.floor(at * (1 / 6))
        return value - chroma * jnp.clip(jnp.minimum(at, 4 - at), 0.0, 1.0)

    return jnp.moveaxis(jnp.stack([channel(5.0), channel(3.0), channel(1.0)]), 0, -1)


@dataclasses.dataclass(frozen=True)
class Greyscale(Operation):
    """Replaces the channels of some images by their luma, as torchvision's RandomGrayscale.

    Attributes:
        p: share of the images that lose their colour.
    """

    p: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise ValueError("p must be between 0 and 1")

    def complaint(self, image_shape: tuple[int, ...]) -> str | None:
        """Refuses images without colour."""
        return _colour_complaint(image_shape)

    def __call__(self, key: jax.Array, image: jax.Array, row: jax.Array) -> jax.Array:
        """As `Operation`."""
        chosen = uniform(key, row, 1)[:, 0] < self.p
        return jnp.where(per_image(chosen), luma(image), image)


@dataclasses.dataclass(frozen=True)
class Noise(Operation):
    """Adds Gaussian noise to each value and clips to 0..1.

    Attributes:
        sigma: its standard deviation; the images' values span 0 to 1.
    """

    sigma: float

    def __post_init__(self) -> None:
        _check_amount("sigma", self.sigma)

    def __call__(self, key: jax.Array, image: jax.Array, row: jax.Array) -> jax.Array:
        """As `Operation`."""
        drawn = normal(key, row, image[0].size).reshape(image.shape)
        return jnp.clip(image + self.sigma * drawn, 0.0, 1.0)


def luma(image: jax.Array) -> jax.Array:
    """Grey `[batch, H, W, 1]` of red, green and blue `[batch, H, W, 3]`."""
    red, green, blue = (image[..., at : at + 1] for at in range(3))
    return _LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue


def _colour_complaint(image_shape: tuple[int, ...]) -> str | None:
    channels = image_shape[-1]
    if channels == len(_LUMA):
        return None
    return f"needs 3 channels, but the images have {channels}; leave it out"


def _check_amount(name: str, value: float) -> None:
    if not 0 <= value <= _MOST:
        raise ValueError(f"{name} must be between 0 and {_MOST}")
