"""Changes of 8-bit images by curves and blends, each image by its own.

All arithmetic is of whole numbers, or of floats that hold sums of them exactly, so that the results
are the same bits on any device and in any part of a batch: a value near a threshold never falls on
another side. They are Pillow's; a blend is rounded, where Pillow cuts off, and so is at most one
level above it.
"""

from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxtrain.augment.apart import apart

LEVELS: Final = 256
WHITE: Final = LEVELS - 1

# Binary digits after the point of a blend's factor.
FACTOR_BITS: Final = 10

# Luma of ITU-R BT.601, in units of 2^-16.
_LUMA: Final = (19595, 38470, 7471)

# What an image is blended with.
BLACK: Final = 0
MEAN: Final = 1
GREY: Final = 2
SMOOTH: Final = 3


def quantised(image: jax.Array) -> jax.Array:
    """The nearest 8-bit values, uint8, of float32 in 0..1."""
    return jnp.round(image * WHITE).astype(jnp.uint8)


class Curve(NamedTuple):
    """A curve of values for each image; one of them is not that of an unchanged image, or none.

    Attributes:
        threshold: int32 `[batch]`, values from it on are inverted; 256 for none.
        mask: int32 `[batch]`, bits that are kept; 255 for all.
        stretch: bool `[batch]`, whether each channel is stretched to 0..255.
        equalize: bool `[batch]`, whether each channel's histogram is made flat.
    """

    threshold: jax.Array
    mask: jax.Array
    stretch: jax.Array
    equalize: jax.Array


def curved(key: jax.Array, image: jax.Array, curve: Curve) -> jax.Array:
    """Images by their curves: uint8 `[batch, H, W, C]`; key as in `apart`."""
    table = apart(key, _table, histogram(image), *curve).reshape(image.shape[0], -1)
    found = jnp.take_along_axis(table, _places(image), axis=1, mode="promise_in_bounds")
    return found.reshape(image.shape)


def _table(count: jax.Array, *curve: jax.Array) -> jax.Array:
    """What each level becomes, uint8 `[batch, C, 256]`, in images of these histograms."""
    threshold, mask, stretch, equalize = (field[:, jnp.newaxis, jnp.newaxis] for field in curve)
    level = jnp.arange(LEVELS)[jnp.newaxis, jnp.newaxis]
    table = jnp.where(level < threshold, level, WHITE - level) & mask
    table = jnp.where(stretch, _stretched(count, level), table)
    return jnp.where(equalize, _equalized(count, level), table).astype(jnp.uint8)


def _stretched(count: jax.Array, level: jax.Array) -> jax.Array:
    """ImageOps.autocontrast: the lowest level becomes 0, the highest 255."""
    lowest = (count > 0).argmax(axis=-1, keepdims=True)
    highest = WHITE - (count[..., ::-1] > 0).argmax(axis=-1, keepdims=True)
    span = highest - lowest
    found = jnp.clip((level - lowest) * WHITE // jnp.maximum(span, 1), 0, WHITE)
    return jnp.where(span > 0, found, level)


def _equalized(count: jax.Array, level: jax.Array) -> jax.Array:
    """ImageOps.equalize: all levels that are there become about as frequent."""
    highest = WHITE - (count[..., ::-1] > 0).argmax(axis=-1, keepdims=True)
    last = jnp.take_along_axis(count, highest, axis=-1)
    below = jnp.cumsum(count, axis=-1) - count
    step = (count.sum(axis=-1, keepdims=True) - last) // WHITE
    found = jnp.clip((step // 2 + below) // jnp.maximum(step, 1), 0, WHITE)
    return jnp.where(step > 0, found, level)


def histogram(image: jax.Array) -> jax.Array:
    """How often each level is there: int32 `[batch, C, 256]` of uint8 `[batch, H, W, C]`."""
    return lax.platform_dependent(image, tpu=_counted_by_product, default=_counted)


def _counted(image: jax.Array) -> jax.Array:
    """Adds one by one: on a CPU by far the fastest, and atomic on a GPU."""
    batch, channels = image.shape[0], image.shape[-1]
    empty = jnp.zeros(channels * LEVELS, jnp.int32)
    # An index of the batch, too, would be faster, but not split over devices.
    count = jax.vmap(lambda place: empty.at[place].add(1, mode="promise_in_bounds"))(_places(image))
    return count.reshape(batch, channels, LEVELS)


def _counted_by_product(image: jax.Array) -> jax.Array:
    """Multiplies what tells the upper four bits by what tells the lower four.

    A TPU adds one by one very slowly. Zeros and ones, and float32 sums of them, are exact.
    """
    value = image.reshape(image.shape[0], -1, image.shape[-1])
    digits = jnp.arange(16, dtype=jnp.uint8)[:, jnp.newaxis, jnp.newaxis, jnp.newaxis]
    upper, lower = (
        (part[jnp.newaxis] == digits).astype(jnp.bfloat16) for part in (value >> 4, value & 15)
    )
    count = jnp.einsum("ibnc,jbnc->bcij", upper, lower, preferred_element_type=jnp.float32)
    return count.astype(jnp.int32).reshape(image.shape[0], image.shape[-1], LEVELS)


def _places(image: jax.Array) -> jax.Array:
    """Of each value in its image's tables, one a channel, laid end to end: int32 `[batch, -1]`."""
    table = jnp.arange(image.shape[-1])[jnp.newaxis, jnp.newaxis, jnp.newaxis]
    return (image.astype(jnp.int32) + LEVELS * table).reshape(image.shape[0], -1)


class Blend(NamedTuple):
    """What each image is blended with, and by which factor.

    Attributes:
        other: int32 `[batch]`: BLACK, MEAN (of its luma), GREY (its luma) or SMOOTH.
        factor: int32 `[batch]` in units of 2^-10: 1 keeps the image, 0 gives the other.
    """

    other: jax.Array
    factor: jax.Array


def blended(key: jax.Array, image: jax.Array, blend: Blend) -> jax.Array:
    """Images by their blends: uint8 `[batch, H, W, C]`, of 1 or 3 channels; key as in `apart`."""
    return apart(key, _blended, image, *blend)


def _blended(image: jax.Array, *blend: jax.Array) -> jax.Array:
    kind, factor = (field[:, jnp.newaxis, jnp.newaxis, jnp.newaxis] for field in blend)
    grey = luma(image)
    value = image.astype(jnp.int32)
    pixels = image.shape[1] * image.shape[2]
    mean = (grey.sum(axis=(1, 2, 3), keepdims=True) + pixels // 2) // pixels
    other = jnp.where(kind == MEAN, mean, 0)
    other = jnp.where(kind == GREY, grey, other)
    other = jnp.where(kind == SMOOTH, smoothed(image).astype(jnp.int32), other)
    half = 1 << (FACTOR_BITS - 1)
    found = other + ((factor * (value - other) + half) >> FACTOR_BITS)
    return jnp.clip(found, 0, WHITE).astype(jnp.uint8)


def luma(image: jax.Array) -> jax.Array:
    """Grey int32 `[batch, H, W, 1]` of uint8 `[batch, H, W, C]`, as Pillow's L."""
    value = image.astype(jnp.int32)
    if image.shape[-1] == 1:
        return value
    red, green, blue = (value[..., at : at + 1] for at in range(len(_LUMA)))
    return (_LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue + (1 << 15)) >> 16


def smoothed(image: jax.Array) -> jax.Array:
    """ImageFilter.SMOOTH: 5 parts of a pixel and 1 of each neighbour; borders stay."""
    batch, height, width, channels = image.shape
    if min(height, width) < 3:
        return image
    line = image.reshape(batch, height, width * channels)

    def neighbour(down: int, right: int) -> jax.Array:
        left, end = (1 + right) * channels, (width - 1 + right) * channels
        return line[:, 1 + down : height - 1 + down, left:end].astype(jnp.int32)

    total = 4 * neighbour(0, 0) + sum(neighbour(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1))
    inside = ((total + 6) // 13).astype(jnp.uint8)
    return lax.dynamic_update_slice(line, inside, (0, 1, channels)).reshape(image.shape)
