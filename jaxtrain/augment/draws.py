"""What an operation is, and the random numbers that belong to a row."""

import abc

import jax
import jax.numpy as jnp
from jax import lax

from jaxtrain import keys


class Operation(abc.ABC):
    """One random change of images. Subclasses are frozen dataclasses of its arguments."""

    def complaint(self, image_shape: tuple[int, ...]) -> str | None:
        """Why images of this shape (height, width, channels) do not do; None if they do."""
        del image_shape
        return None

    @abc.abstractmethod
    def __call__(self, key: jax.Array, image: jax.Array, row: jax.Array) -> jax.Array:
        """The changed images.

        Args:
            key: typed key `[]` of this operation at this step.
            image: float32 `[batch, H, W, C]` in 0..1.
            row: int32 `[batch]`, each image's row in the global batch.

        Returns:
            Images of the same shape and dtype, each a function of the key, itself and its row.
        """


def uniform(key: jax.Array, row: jax.Array, count: int) -> jax.Array:
    """Float32 `[batch, count]` in [0, 1), multiples of 2^-24."""
    return (keys.row_bits(key, row, count) >> 8).astype(jnp.float32) * 2.0**-24


def symmetric(key: jax.Array, row: jax.Array, count: int) -> jax.Array:
    """Float32 `[batch, count]` in [-1, 1), multiples of 2^-23."""
    return 2.0 * uniform(key, row, count) - 1.0


def normal(key: jax.Array, row: jax.Array, count: int) -> jax.Array:
    """Float32 `[batch, count]` of the standard normal distribution, all within 5.4.

    By its inverse, as `jax.random.normal`, of which it takes a third of the time on a CPU.
    """
    odd = 2 * (keys.row_bits(key, row, count) >> 9).astype(jnp.float32) + 1.0
    return 2.0**0.5 * lax.erf_inv(odd * 2.0**-23 - 1.0)


def per_image(values: jax.Array) -> jax.Array:
    """`[batch]` to `[batch, 1, 1, 1]`."""
    return values[:, jnp.newaxis, jnp.newaxis, jnp.newaxis]
