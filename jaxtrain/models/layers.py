"""Layers that know which row of the global batch they compute."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jaxtrain import keys


class RowDropout(nn.Module):
    """Dropout (Srivastava et al., 2014) whose mask belongs to the global row.

    Flax's own draws one mask for the array it sees, so microbatches and per-device programs would
    each draw another. Here a row's mask depends on (seed, step, layer, row) alone.

    Attributes:
        rate: share of the units that are zeroed, 0 to below 1; the rest are scaled by 1/(1-rate).
    """

    rate: float

    @nn.compact
    def __call__(self, inputs: jax.Array, *, row: jax.Array, train: bool) -> jax.Array:
        """Returns `inputs` `[batch, ...]`, units dropped if `train`; `row` is int32 `[batch]`."""
        if not train or self.rate == 0.0:
            return inputs
        bits = keys.row_bits(self.make_rng("dropout"), row, math.prod(inputs.shape[1:]))
        keep = bits.reshape(inputs.shape) >= np.uint32(self.rate * 2**32)
        return jnp.where(keep, inputs / (1.0 - self.rate), jnp.zeros_like(inputs))
