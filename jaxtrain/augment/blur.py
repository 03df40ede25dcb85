"""Gaussian blur."""

import dataclasses
import math
from typing import Final

import jax
import jax.numpy as jnp
from jax import lax

from jaxtrain.augment.apart import apart
from jaxtrain.augment.draws import Operation, uniform

# Kernels end where a Gaussian has 1 % of its height.
_REACH: Final = 3

# Each pixel of a kernel is one more pass over the images.
_MOST_SIGMA: Final = 10


@dataclasses.dataclass(frozen=True)
class Blur(Operation):
    """Blurs some images, as torchvision's GaussianBlur; borders are mirrored.

    Attributes:
        sigma: smallest and largest standard deviation in pixels; drawn uniformly.
        p: share of the images that are blurred.
    """

    sigma: tuple[float, float] = (0.1, 2.0)
    p: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.sigma[0] <= self.sigma[1] <= _MOST_SIGMA:
            raise ValueError(
                f"sigma must be two numbers from 0 to {_MOST_SIGMA}, the smaller one first"
            )
        if not 0 <= self.p <= 1:
            raise ValueError("p must be between 0 and 1")

    def __call__(self, key: jax.Array, image: jax.Array, row: jax.Array) -> jax.Array:
        """As `Operation`."""
        draws = uniform(key, row, 2)
        low, high = self.sigma
        sigma = jnp.where(draws[:, 0] < self.p, low + (high - low) * draws[:, 1], 0.0)
        return jnp.clip(blurred(key, image, sigma, math.ceil(_REACH * high)), 0.0, 1.0)


def blurred(key: jax.Array, image: jax.Array, sigma: jax.Array, radius: int) -> jax.Array:
    """Images, each with its own Gaussian.

    Args:
        key: as `apart`.
        image: float32 `[batch, H, W, C]`.
        sigma: float32 `[batch]`, in pixels; 0 changes nothing.
        radius: pixels of the kernel on each side of its middle.

    Returns:
        Images `[batch, H, W, C]`.
    """
    # The smallest sigma has no weight but the middle's, in float32.
    spread = 2 * jnp.maximum(sigma, 0.01)[:, jnp.newaxis] ** 2
    distance = jnp.arange(-radius, radius + 1, dtype=jnp.float32)[jnp.newaxis]
    kernel = jnp.exp(-(distance**2) / spread)
    kernel = kernel / kernel.sum(axis=1, keepdims=True)

    def along(axis: int, image: jax.Array) -> jax.Array:
        batch, height, width, channels = image.shape
        pad = [(radius, radius) if at == axis else (0, 0) for at in range(image.ndim)]
        padded = apart(key, lambda given: jnp.pad(given, pad, "reflect"), image)
        # Long lines take half the time.
        flat = padded.reshape(batch, padded.shape[1], -1)
        stride = (1, channels)[axis - 1]
        length = (height, width * channels)[axis - 1]

        def summed(flat: jax.Array, kernel: jax.Array) -> jax.Array:
            found = jnp.zeros((batch, height, width * channels), image.dtype)
            for at in range(2 * radius + 1):
                shifted = lax.slice_in_dim(flat, at * stride, at * stride + length, axis=axis)
                found = found + kernel[:, at, jnp.newaxis, jnp.newaxis] * shifted
            return found

        return apart(key, summed, flat, kernel).reshape(image.shape)

    return along(2, along(1, image))
