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
        return _dropped(inputs, bits.reshape(inputs.shape), self.rate)


class StochasticDepth(nn.Module):
    """Drops a residual branch for some examples (Huang et al., 2016), each by its global row.

    Attributes:
        rate: share of the examples whose branch is zeroed, 0 to below 1; the other branches are
            scaled by 1/(1-rate), so that evaluation needs no factor.
    """

    rate: float

    @nn.compact
    def __call__(self, branch: jax.Array, *, row: jax.Array, train: bool) -> jax.Array:
        """Returns `branch` `[batch, ...]`, rows dropped if `train`; `row` is int32 `[batch]`."""
        if not train or self.rate == 0.0:
            return branch
        bits = keys.row_bits(self.make_rng("dropout"), row, 1)
        return _dropped(branch, bits.reshape(-1, *(1,) * (branch.ndim - 1)), self.rate)


def _dropped(inputs: jax.Array, bits: jax.Array, rate: float) -> jax.Array:
    """`inputs` where the random uint32 `bits` say so with chance 1-rate, scaled; else 0."""
    return jnp.where(bits >= np.uint32(rate * 2**32), inputs / (1.0 - rate), 0)
