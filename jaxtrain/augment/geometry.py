"""Operations that move pixels."""

import dataclasses
import math
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxtrain.augment.draws import Operation, per_image, symmetric, uniform

_DIRECTIONS: Final = {"horizontal": 2, "vertical": 1}
_PADDINGS: Final = {"zero": "constant", "reflect": "reflect"}

# More would only round: cosines are float32, with 24 bits.
_MOST_FRACTION_BITS: Final = 20


@dataclasses.dataclass(frozen=True)
class Flip(Operation):
    """Mirrors images.

    Attributes:
        p: share of the images that are mirrored.
        direction: horizontal (left and right change places) or vertical.
    """

    p: float = 0.5
    direction: str = "horizontal"

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise ValueError("p must be between 0 and 1")
        if self.direction not in _DIRECTIONS:
            raise ValueError(f"direction must be {' or '.join(_DIRECTIONS)}")

    def __call__(self, key: jax.Array, image: jax.Array, row: jax.Array) -> jax.Array:
        """As `Operation`."""
        chosen = uniform(key, row, 1)[:, 0] < self.p
        return jnp.where(per_image(chosen), jnp.flip(image, _DIRECTIONS[self.direction]), image)


@dataclasses.dataclass(frozen=True)
class PadCrop(Operation):
    """Pads each side and crops a random window of the image's own size.

    The usual augmentation of CIFAR (He et al., "Deep residual learning", 2016, section 4.2).

    Attributes:
        pad: pixels added on each of the four sides.
        mode: what is added: zero, or reflect (the image mirrored at its outermost pixels).
    """

    pad: int
    mode: str = "zero"

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise ValueError("pad must be 0 or more")
        if self.mode not in _PADDINGS:
            raise ValueError(f"mode must be {' or '.join(_PADDINGS)}")

    def complaint(self, image_shape: tuple[int, ...]) -> str | None:
        """Refuses windows that could miss the image."""
        side = min(image_shape[:2])
        return None if self.pad < side else f"pad must be below the smaller side, {side}"

    def __call__(self, key: jax.Array, image: jax.Array, row: jax.Array) -> jax.Array:
        """As `Operation`."""
        corner = uniform(key, row, 2) * (2 * self.pad + 1)
        return windows(image, corner.astype(jnp.int32), self.pad, self.mode)


def windows(image: jax.Array, corner: jax.Array, pad: int, mode: str) -> jax.Array:
    """The window of each padded image at its corner.

    Args:
        image: float32 `[batch, H, W, C]`.
        corner: int32 `[batch, 2]`, top and left in the padded image, 0 to 2 * pad.
        pad: pixels added on each side.
        mode: zero or reflect.

    Returns:
        Windows `[batch, H, W, C]`.
    """
    padded = jnp.pad(image, ((0, 0), (pad, pad), (pad, pad), (0, 0)), _PADDINGS[mode])
    size = image.shape[1:]
    return jax.vmap(lambda one, at: lax.dynamic_slice(one, (at[0], at[1], 0), size))(padded, corner)


@dataclasses.dataclass(frozen=True)
class Affine(Operation):
    """Rotates, shears, scales and shifts about the centre in one bilinear resampling.

    A pixel p about the centre moves to R(rotate) S(shear) scale p + translate, as in torchvision's
    RandomAffine; what comes from outside is `fill`. Each amount is drawn uniformly.

    Attributes:
        rotate: largest angle in degrees, either way.
        translate: largest shift as a share of height and of width; whole pixels, so that a shift
            alone does not blur.
        scale: largest change of size: the factor lies in 1 - scale to 1 + scale.
        shear: largest slant of vertical lines in degrees, either way.
        fill: value of what comes from outside, 0 to 1.
    """

    rotate: float = 0.0
    translate: float = 0.0
    scale: float = 0.0
    shear: float = 0.0
    fill: float = 0.0

    def __post_init__(self) -> None:
        # Beyond these limits of scale and shear nothing can be made out.
        limits = {"rotate": 180, "translate": 1, "scale": 0.9, "shear": 60, "fill": 1}
        for name, limit in limits.items():
            if not 0 <= getattr(self, name) <= limit:
                raise ValueError(f"{name} must be between 0 and {limit}")

    def __call__(self, key: jax.Array, image: jax.Array, row: jax.Array) -> jax.Array:
        """As `Operation`."""
        height, width = image.shape[1:3]
        amounts = symmetric(key, row, 5)
        # As far as the corners of a window shifted all the way lie from the centre, in half pixels.
        reach = (1 + 2 * self.translate) * (height + width)
        stretch = (1 + math.tan(math.radians(self.shear))) / (1 - self.scale)
        bits = min(_MOST_FRACTION_BITS, 30 - math.ceil(math.log2(reach * (stretch + 1))))
        motion = affine_motion(
            angle=amounts[:, 0] * math.radians(self.rotate),
            slant=amounts[:, 1] * math.radians(self.shear),
            growth=amounts[:, 2] * self.scale,
            shift=jnp.round(
                amounts[:, 3:]
                * jnp.array([[self.translate * height, self.translate * width]], jnp.float32)
            ).astype(jnp.int32),
            bits=bits,
        )
        return resample(image, motion, self.fill)


class Motion(NamedTuple):
    """Where each pixel of an image comes from.

    Pixel (y, x) about the centre comes from `matrix` ((y, x) - shift). The matrix is in fixed
    point: XLA may compute a position twice, for the index of a pixel and for its weight, and round
    floats in different ways; integers agree.

    Attributes:
        matrix: int32 `[batch, 4]` in units of 2^-bits: y by y, y by x, x by y, x by x.
        shift: int32 `[batch, 2]`, rows and columns.
        bits: binary digits after the point.
    """

    matrix: jax.Array
    shift: jax.Array
    bits: int


def affine_motion(
    angle: jax.Array, slant: jax.Array, growth: jax.Array, shift: jax.Array, bits: int
) -> Motion:
    """The inverse of rotation after shear and scale, and the shift.

    Args:
        angle: float32 `[batch]`, counter-clockwise as seen, in radians.
        slant: float32 `[batch]`, of vertical lines, to the right at the top, in radians.
        growth: float32 `[batch]`, the scale factor minus 1.
        shift: int32 `[batch, 2]`, rows down and columns right.
        bits: binary digits after the point of the result.
    """

    # Only products are rounded: sums of them could be fused, and round in another way.
    def fixed(value: jax.Array) -> jax.Array:
        return jnp.round(value * 2.0**bits).astype(jnp.int32)

    one = 2**bits
    shrink = float(one) / (one + fixed(growth)).astype(jnp.float32)
    cos, sin, tan = jnp.cos(angle) * shrink, jnp.sin(angle) * shrink, jnp.tan(slant)
    columns = (
        fixed(cos),
        fixed(sin),
        fixed(cos * tan) - fixed(sin),
        fixed(cos) + fixed(sin * tan),
    )
    return Motion(jnp.stack(columns, axis=1), shift, bits)


def resample(image: jax.Array, motion: Motion, fill: float) -> jax.Array:
    """Each image's pixels from where they come from, bilinearly; `fill` outside.

    Args:
        image: float32 `[batch, H, W, C]`.
        motion: of each image.
        fill: value of all pixels outside.

    Returns:
        Images `[batch, H, W, C]`; equal to the given ones, bit for bit, where nothing moves.
    """
    height, width = image.shape[1:3]
    # Twice the distance from the centre is a whole number for even sides too.
    y = 2 * (jnp.arange(height)[jnp.newaxis] - motion.shift[:, :1]) - (height - 1)
    x = 2 * (jnp.arange(width)[jnp.newaxis] - motion.shift[:, 1:]) - (width - 1)
    y, x = y[:, :, jnp.newaxis], x[:, jnp.newaxis, :]
    yy, yx, xy, xx = (motion.matrix[:, at, jnp.newaxis, jnp.newaxis] for at in range(4))
    from_y = yy * y + yx * x + ((height - 1) << motion.bits)
    from_x = xy * y + xx * x + ((width - 1) << motion.bits)
    return bilinear(image, from_y, from_x, fill, motion.bits + 1)


def bilinear(
    image: jax.Array, from_y: jax.Array, from_x: jax.Array, fill: float, bits: int
) -> jax.Array:
    """The image between its pixels; `fill` outside.

    Args:
        image: float32 `[batch, H, W, C]`.
        from_y: int32 `[batch, H, W]`, row from which each pixel comes, in units of 2^-bits.
        from_x: the same of columns.
        fill: value of all pixels outside.
        bits: binary digits after the point.

    Returns:
        Images `[batch, H, W, C]`; of whole rows and columns the very pixels.
    """
    batch, height, width, channels = image.shape
    # One ring of fill, and one more on the far sides for the neighbours of that ring.
    padded = jnp.pad(image, ((0, 0), (1, 2), (1, 2), (0, 0)), constant_values=fill)
    flat = padded.reshape(batch, -1, channels)
    top, down = _whole_and_rest(from_y, height, bits)
    left, right = _whole_and_rest(from_x, width, bits)
    stride = width + 3
    first = (top * stride + left).reshape(batch, -1, 1)

    def pixels(offset: int) -> jax.Array:
        found = jnp.take_along_axis(flat, first + offset, axis=1, mode="promise_in_bounds")
        return found.reshape(image.shape)

    upper = pixels(0) * (1.0 - right) + pixels(1) * right
    lower = pixels(stride) * (1.0 - right) + pixels(stride + 1) * right
    return upper * (1.0 - down) + lower * down


def _whole_and_rest(position: jax.Array, side: int, bits: int) -> tuple[jax.Array, jax.Array]:
    """Index in the padded image, and the next pixel's weight, float32 `[batch, H, W, 1]`.

    Args:
        position: int32 `[batch, H, W]` in units of 2^-bits.
        side: pixels of the image on this axis.
        bits: as above.
    """
    position = jnp.clip(position, -1 << bits, side << bits)
    rest = (position & ((1 << bits) - 1)).astype(jnp.float32) * 2.0**-bits
    return (position >> bits) + 1, rest[..., jnp.newaxis]


def nearest(image: jax.Array, matrix: jax.Array, fill: int, bits: int) -> jax.Array:
    """Each image's pixels from the nearest to where they come from; `fill` outside.

    The centre of a pixel, (y + 1/2, x + 1/2), comes from `matrix` (y + 1/2, x + 1/2, 1), as in
    Pillow's `Image.transform`.

    Args:
        image: uint8 `[batch, H, W, C]`.
        matrix: int32 `[batch, 6]` in units of 2^-bits: y by y, y by x, y by 1, and so for x.
        fill: value of all pixels outside.
        bits: binary digits after the point.

    Returns:
        Images `[batch, H, W, C]`.
    """
    batch, height, width, channels = image.shape
    y = (2 * jnp.arange(height) + 1)[jnp.newaxis, :, jnp.newaxis]
    x = (2 * jnp.arange(width) + 1)[jnp.newaxis, jnp.newaxis, :]
    yy, yx, y1, xy, xx, x1 = (matrix[:, at, jnp.newaxis, jnp.newaxis] for at in range(6))
    from_y = (yy * y + yx * x + 2 * y1) >> (bits + 1)
    from_x = (xy * y + xx * x + 2 * x1) >> (bits + 1)
    inside = (from_y >= 0) & (from_y < height) & (from_x >= 0) & (from_x < width)
    first = jnp.where(inside, from_y * width + from_x, 0).reshape(batch, -1, 1)
    flat = image.reshape(batch, -1, channels)
    found = jnp.take_along_axis(flat, first, axis=1, mode="promise_in_bounds")
    return jnp.where(inside[..., jnp.newaxis], found.reshape(image.shape), jnp.uint8(fill))
