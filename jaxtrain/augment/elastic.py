"""Elastic deformation."""

import dataclasses
import math
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from jaxtrain.augment.apart import apart
from jaxtrain.augment.draws import Operation, symmetric
from jaxtrain.augment.geometry import bilinear

# Shifts of thousands of pixels, or by waves of hundreds, deform nothing that could be seen.
_MOST_ALPHA: Final = 10_000
_MOST_SIGMA: Final = 100

# Kernels end where a Gaussian has 0.03 % of its height.
_REACH: Final = 4

_MOST_FRACTION_BITS: Final = 20


@dataclasses.dataclass(frozen=True)
class Elastic(Operation):
    """Moves each pixel by a smooth random field, bilinearly (Simard et al., 2003, section 2).

    Each pixel draws a shift down and one to the right, uniformly from -1 to 1; both are averaged
    over the neighbourhood by a Gaussian, with mirrored borders, and multiplied by `alpha`. The
    standard deviation of the shifts is 0.16 alpha / sigma pixels. The defaults are those that the
    paper found best for 29 x 29 pixels of handwriting.

    Attributes:
        alpha: factor of the shifts, in pixels.
        sigma: standard deviation of the Gaussian, in pixels.
        fill: value of what comes from outside, 0 to 1.
    """

    alpha: float = 34.0
    sigma: float = 4.0
    fill: float = 0.0

    def __post_init__(self) -> None:
        limits = {"alpha": _MOST_ALPHA, "sigma": _MOST_SIGMA, "fill": 1}
        for name, limit in limits.items():
            if not 0 <= getattr(self, name) <= limit:
                raise ValueError(f"{name} must be between 0 and {limit}")

    def __call__(self, key: jax.Array, image: jax.Array, row: jax.Array) -> jax.Array:
        """As `Operation`."""
        height, width = image.shape[1:3]
        noise = symmetric(key, row, 2 * height * width).reshape(-1, 2, height, width)
        reach = math.ceil(math.log2(self.alpha + max(height, width) + 2))
        bits = min(_MOST_FRACTION_BITS, 30 - reach)

        def field(noise: jax.Array) -> jax.Array:
            down, right = (
                jnp.asarray(averaging(side, self.sigma), jnp.float32) for side in (height, width)
            )
            smooth = jnp.einsum(
                "ij,bcjk,lk->bcil", down, noise, right, precision=lax.Precision.HIGHEST
            )
            return jnp.round(smooth * (self.alpha * 2.0**bits)).astype(jnp.int32)

        shift = apart(key, field, noise)
        from_y = (jnp.arange(height) << bits)[jnp.newaxis, :, jnp.newaxis] + shift[:, 0]
        from_x = (jnp.arange(width) << bits)[jnp.newaxis, jnp.newaxis] + shift[:, 1]
        return jnp.clip(bilinear(image, from_y, from_x, self.fill, bits), 0.0, 1.0)


def averaging(side: int, sigma: float) -> NDArray[np.float64]:
    """The matrix `[side, side]` that averages a line by a Gaussian, with mirrored ends."""
    radius = math.ceil(_REACH * sigma)
    distance = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (distance / max(sigma, 0.01)) ** 2)
    source = np.pad(np.arange(side), radius, "reflect")
    matrix = np.zeros((side, side))
    for at, weight in enumerate(kernel / kernel.sum()):
        matrix[np.arange(side), source[at : at + side]] += weight
    return matrix
