"""Operations that cover a part of the image."""

import dataclasses
import math
from typing import Final

import jax
import jax.numpy as jnp

from jaxtrain.augment.draws import Operation, uniform

# As torchvision does.
_ATTEMPTS: Final = 10


@dataclasses.dataclass(frozen=True)
class Cutout(Operation):
    """Covers one square (DeVries and Taylor, "Improved regularization ... with Cutout", 2017).

    Its centre is any pixel with the same chance, so it may overhang. The paper covers with the mean
    colour; that is `fill` in 0..1 here, as images are normalised later.

    Attributes:
        size: side of the square in pixels.
        fill: value that covers, 0 to 1.
    """

    size: int
    fill: float = 0.0

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("size must be 0 or more")
        _check_fill(self.fill)

    def complaint(self, image_shape: tuple[int, ...]) -> str | None:
        """Refuses squares that are larger than the image."""
        side = min(image_shape[:2])
        return None if self.size <= side else f"size must be at most the smaller side, {side}"

    def __call__(self, key: jax.Array, image: jax.Array, row: jax.Array) -> jax.Array:
        """As `Operation`."""
        sides = jnp.array([image.shape[1:3]], jnp.float32)
        centre = (uniform(key, row, 2) * sides).astype(jnp.int32)
        size = jnp.full_like(centre, self.size)
        return covered(image, centre - self.size // 2, size, self.fill)


@dataclasses.dataclass(frozen=True)
class RandomErasing(Operation):
    """Covers one rectangle in some images (Zhong et al., "Random erasing ...", 2017).

    Share of the area and ratio of height to width are drawn as torchvision draws them: the ratio
    evenly in its logarithm, and both again, up to ten times, where they do not fit the image.

    Attributes:
        p: share of the images that lose a rectangle.
        scale: smallest and largest share of the image's area.
        ratio: smallest and largest height over width.
        fill: value that covers, 0 to 1.
    """

    p: float = 0.25
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    fill: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise ValueError("p must be between 0 and 1")
        if not 0 < self.scale[0] <= self.scale[1] < 1:
            raise ValueError("scale must be two shares between 0 and 1, the smaller one first")
        if not 0.01 <= self.ratio[0] <= self.ratio[1] <= 100:
            raise ValueError("ratio must be two numbers from 0.01 to 100, the smaller one first")
        _check_fill(self.fill)

    def __call__(self, key: jax.Array, image: jax.Array, row: jax.Array) -> jax.Array:
        """As `Operation`."""
        height, width = image.shape[1:3]
        draws = uniform(key, row, 3 + 2 * _ATTEMPTS)
        low, high = self.scale
        area = (low + (high - low) * draws[:, 3 : 3 + _ATTEMPTS]) * (height * width)
        low, high = map(math.log, self.ratio)
        ratio = jnp.exp(low + (high - low) * draws[:, 3 + _ATTEMPTS :])
        sizes = jnp.round(jnp.sqrt(jnp.stack([area * ratio, area / ratio], axis=-1)))
        sides = jnp.array([[height, width]], jnp.float32)
        fits = (sizes < sides[jnp.newaxis]).all(axis=-1)
        first = fits.argmax(axis=1)[:, jnp.newaxis, jnp.newaxis]
        size = jnp.take_along_axis(sizes, first, axis=1)[:, 0]
        corner = (draws[:, 1:3] * (sides - size + 1.0)).astype(jnp.int32)
        erased = (draws[:, :1] < self.p) & fits.any(axis=1, keepdims=True)
        size = jnp.where(erased, size, 0.0).astype(jnp.int32)
        return covered(image, corner, size, self.fill)


def covered(image: jax.Array, corner: jax.Array, size: jax.Array, fill: float) -> jax.Array:
    """Images `[batch, H, W, C]` with `fill` in each one's rectangle.

    Args:
        image: float32 `[batch, H, W, C]`.
        corner: int32 `[batch, 2]`, top and left; may lie outside.
        size: int32 `[batch, 2]`, height and width; 0 for none.
        fill: value that covers.
    """
    rectangle = rectangles(corner, size, image.shape[1:3])
    return jnp.where(rectangle[..., jnp.newaxis], jnp.float32(fill), image)


def rectangles(corner: jax.Array, size: jax.Array, sides: tuple[int, ...]) -> jax.Array:
    """Which pixels of each image are in its rectangle: bool `[batch, H, W]`.

    Args:
        corner: as for `covered`.
        size: as for `covered`.
        sides: height and width of the images.
    """

    def within(axis: int) -> jax.Array:
        at = jnp.arange(sides[axis])[jnp.newaxis] - corner[:, axis : axis + 1]
        return (at >= 0) & (at < size[:, axis : axis + 1])

    return within(0)[:, :, jnp.newaxis] & within(1)[:, jnp.newaxis, :]


def _check_fill(fill: float) -> None:
    if not 0 <= fill <= 1:
        raise ValueError("fill must be between 0 and 1")
