"""Normalisation layers: BatchNorm over the rows that count, and GroupNorm."""

import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

EPSILON = 1e-5
MOMENTUM = 0.9


def normalise(
    inputs: jax.Array,
    *,
    groups: int | None,
    mask: jax.Array,
    train: bool,
    axis: str | None,
    name: str,
    zero_scale: bool = False,
) -> jax.Array:
    """A normalisation layer of the module that calls it.

    Args:
        inputs: float `[batch, H, W, channels]`.
        groups: groups of GroupNorm; None for BatchNorm.
        mask: bool `[batch]`, rows that count.
        train: whether BatchNorm uses this batch's statistics or the running ones.
        axis: the axis of the devices, if these are the rows of one of them.
        name: the layer's name.
        zero_scale: start the scale at 0, not 1.

    Returns:
        As `inputs`, in shape and dtype.
    """
    if groups is None:
        return BatchNorm(zero_scale, name=name)(inputs, mask=mask, train=train, axis=axis)
    scale_init = nn.initializers.zeros if zero_scale else nn.initializers.ones
    layer = nn.GroupNorm(
        num_groups=groups,
        epsilon=EPSILON,
        dtype=inputs.dtype,
        scale_init=scale_init,
        use_fast_variance=False,
        name=name,
    )
    return layer(inputs)


class BatchNorm(nn.Module):
    """Batch normalisation (Ioffe and Szegedy, 2015) over the rows of the global batch that count.

    Under `jit` the sums are over the whole batch however it lies on the devices, and rows that do
    not count are in none of them, so padding and the number of devices change nothing. (Flax's own
    averages the devices' means, which is NaN when all rows of one are masked.)

    Statistics and arithmetic are float32 in any dtype of the inputs. The variance is computed in
    two passes, as E[x^2] - E[x]^2 loses all digits when the mean is large. As in PyTorch, running
    statistics move by a tenth at each update and the running variance is the unbiased one.

    Variables: `scale` and `bias` in `params`, `mean` and `var` in `batch_stats`, each float32
    `[channels]`.

    Attributes:
        zero_scale: start the scale at 0, not 1.
    """

    zero_scale: bool = False

    @nn.compact
    def __call__(
        self, inputs: jax.Array, *, mask: jax.Array, train: bool, axis: str | None = None
    ) -> jax.Array:
        """Normalises each channel.

        Args:
            inputs: float `[batch, H, W, channels]`.
            mask: bool `[batch]`. While training, rows that are False may hold anything, NaN
                included: they come out as 0 and give and get no gradient.
            train: normalise by this batch and move the running statistics (unless no row counts);
                else normalise by the running statistics, every row.
            axis: the axis of the devices, if these are the rows of one of them; the statistics
                are those of all.

        Returns:
            As `inputs`, in shape and dtype.
        """
        shape = inputs.shape[-1:]
        scale_init = nn.initializers.zeros if self.zero_scale else nn.initializers.ones
        scale = self.param("scale", scale_init, shape)
        bias = self.param("bias", nn.initializers.zeros, shape)
        mean = self.variable("batch_stats", "mean", jnp.zeros, shape)
        variance = self.variable("batch_stats", "var", jnp.ones, shape)
        if not train:
            outputs = _affine(inputs, mean.value, variance.value, scale, bias)
            return outputs.astype(inputs.dtype)
        # `_normalise` has the gradient that passes through the statistics as well.
        batch = _Batch.of(jax.lax.stop_gradient(inputs), mask, axis)
        unbiased = batch.variance * (batch.pixels / jnp.maximum(batch.pixels - 1, 1))
        for running, new in ((mean, batch.mean), (variance, unbiased)):
            moved = MOMENTUM * running.value + (1 - MOMENTUM) * new
            running.value = jnp.where(batch.pixels > 0, moved, running.value)
        return _normalise(axis, inputs, scale, bias, batch)


class _Batch(NamedTuple):
    """What BatchNorm knows of the rows that count.

    Attributes:
        mean: float32 `[channels]`; 0 if no row counts.
        variance: float32 `[channels]`, biased; 0 if no row counts.
        mask: bool `[batch]`, rows that count.
        pixels: float32 `[]`, how many pixels those rows have.
    """

    mean: jax.Array
    variance: jax.Array
    mask: jax.Array
    pixels: jax.Array

    @classmethod
    def of(cls, inputs: jax.Array, mask: jax.Array, axis: str | None) -> "_Batch":
        """The statistics of `inputs` `[batch, H, W, channels]`."""
        rows = _total(mask.sum(dtype=jnp.float32), axis)
        pixels = rows * (inputs.shape[1] * inputs.shape[2])
        divisor = jnp.maximum(pixels, 1)
        mean = _total(_sum(inputs.astype(jnp.float32), mask), axis) / divisor
        deviation = _centred(inputs, mean)
        variance = _total(_sum(deviation * deviation, mask), axis) / divisor
        return cls(mean, variance, mask, pixels)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _normalise(
    axis: str | None, inputs: jax.Array, scale: jax.Array, bias: jax.Array, batch: _Batch
) -> jax.Array:
    """The rows that count normalised, all others 0.

    Its gradient is written out as it then takes two passes over the inputs, and as all that is
    kept for it is the inputs in their own dtype: what JAX derives takes twice the time on a CPU.
    `batch` gets no gradient: that of `inputs` includes what passes through the statistics.
    """
    outputs = _affine(inputs, batch.mean, batch.variance, scale, bias)
    return jnp.where(_over_pixels(batch.mask), outputs, 0).astype(inputs.dtype)


def _normalise_forward(
    axis: str | None, inputs: jax.Array, scale: jax.Array, bias: jax.Array, batch: _Batch
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, _Batch]]:
    return _normalise(axis, inputs, scale, bias, batch), (inputs, scale, batch)


def _normalise_backward(
    axis: str | None, saved: tuple[jax.Array, jax.Array, _Batch], gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    inputs, scale, batch = saved
    wide = gradient.astype(jnp.float32)
    deviation = _centred(inputs, batch.mean)
    inverse = _inverse(batch.variance)
    to_bias = _sum(wide, batch.mask)
    to_scale = _sum(wide * deviation, batch.mask) * inverse
    divisor = jnp.maximum(batch.pixels, 1)
    # The parameters' gradients are of these rows alone, as everywhere; the inputs' are not.
    by_mean = _by_channel(_total(to_bias, axis) / divisor)
    by_deviation = deviation * _by_channel(inverse * _total(to_scale, axis) / divisor)
    to_inputs = _by_channel(inverse * scale) * (wide - by_mean - by_deviation)
    to_inputs = jnp.where(_over_pixels(batch.mask), to_inputs, 0).astype(inputs.dtype)
    return to_inputs, to_scale, to_bias, None


_normalise.defvjp(_normalise_forward, _normalise_backward)


def _affine(
    inputs: jax.Array, mean: jax.Array, variance: jax.Array, scale: jax.Array, bias: jax.Array
) -> jax.Array:
    """Each channel normalised, scaled and shifted, in float32."""
    factor = _by_channel(_inverse(variance) * scale)
    return _centred(inputs, mean) * factor + _by_channel(bias)


def _inverse(variance: jax.Array) -> jax.Array:
    return jax.lax.rsqrt(variance + EPSILON)


def _centred(inputs: jax.Array, mean: jax.Array) -> jax.Array:
    return inputs.astype(jnp.float32) - _by_channel(mean)


def _sum(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Sums `[batch, H, W, channels]` over the rows that count and all pixels: `[channels]`.

    Each row is summed first, as masking the rows' sums costs nothing, but masking every pixel
    doubles the time of a sum on a CPU.
    """
    return jnp.where(mask[:, None], values.sum((1, 2)), 0).sum(0)


def _total(values: jax.Array, axis: str | None) -> jax.Array:
    """The sum over all devices, where each has the sum over its own rows."""
    return values if axis is None else jax.lax.psum(values, axis)


def _by_channel(values: jax.Array) -> jax.Array:
    return values[None, None, None]


def _over_pixels(mask: jax.Array) -> jax.Array:
    return mask[:, None, None, None]
