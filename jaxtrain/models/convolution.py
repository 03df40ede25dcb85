"""Convolutions, padded as PyTorch's are, with a gradient that is quick on a CPU too."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import jax.typing

# What a part of a batch should take at most, to stay in a core's cache, and how many parts are
# worth the time that they take to compile.
_PART_BYTES = 2**20
_MOST_PARTS = 16


class Conv(nn.Module):
    """A convolution without bias.

    Both sides are padded alike. (`SAME` pads a stride of 2 on one side only and would not give
    what published weights give.) The kernel `kernel` is float32 `[side, side, inputs, channels]`
    and starts as torchvision's: normal, of variance 2 / (side * side * channels) (He et al., 2015).

    Attributes:
        channels: of the outputs.
        side: of the kernel, odd.
        stride: of the outputs' pixels.
        dtype: dtype of the computation.
    """

    channels: int
    side: int
    stride: int
    dtype: jax.typing.DTypeLike

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """`[batch, H, W, inputs]` to `[batch, ceil(H / stride), ceil(W / stride), channels]`."""
        init = nn.initializers.variance_scaling(2.0, "fan_out", "normal")
        shape = (self.side, self.side, inputs.shape[-1], self.channels)
        kernel = self.param("kernel", init, shape)
        return convolve(inputs.astype(self.dtype), kernel.astype(self.dtype), self.stride)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def convolve(inputs: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """The convolution of `Conv`; both arrays are of one dtype.

    The kernel's gradient is a convolution whose channels are the batch, and XLA's CPU backend must
    transpose all of the batch for it. On that backend it is the sum over parts of the batch that
    fit in the cache: 2 to 3 times as fast, which saves a quarter of a small ResNet's step.
    """
    return _convolve(inputs, kernel, stride)


def _forward(
    inputs: jax.Array, kernel: jax.Array, stride: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _convolve(inputs, kernel, stride), (inputs, kernel)


def _backward(
    stride: int, saved: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    inputs, kernel = saved

    def to_kernel(inputs: jax.Array, gradient: jax.Array) -> jax.Array:
        _, pull = jax.vjp(lambda kernel: _convolve(inputs, kernel, stride), kernel)
        return pull(gradient)[0]

    def in_parts(inputs: jax.Array, gradient: jax.Array) -> jax.Array:
        pairs = zip(_split(inputs, parts), _split(gradient, parts), strict=True)
        return functools.reduce(jnp.add, [to_kernel(*pair) for pair in pairs])

    _, pull = jax.vjp(lambda inputs: _convolve(inputs, kernel, stride), inputs)
    parts = _parts(inputs)
    if parts == 1:
        return pull(gradient)[0], to_kernel(inputs, gradient)
    by_platform = jax.lax.platform_dependent(inputs, gradient, cpu=in_parts, default=to_kernel)
    return pull(gradient)[0], by_platform


convolve.defvjp(_forward, _backward)


def _convolve(inputs: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    padding = [(side // 2, side // 2) for side in kernel.shape[:2]]
    return jax.lax.conv_general_dilated(
        inputs, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _parts(inputs: jax.Array) -> int:
    """How many parts a batch has on a CPU: a power of two that divides it."""
    parts = 1
    size = inputs.size * inputs.dtype.itemsize
    while (
        inputs.dtype == jnp.float32  # others would round each part
        and size / parts > _PART_BYTES
        and parts < _MOST_PARTS
        and inputs.shape[0] % (2 * parts) == 0
    ):
        parts *= 2
    return parts


def _split(batch: jax.Array, parts: int) -> list[jax.Array]:
    """Every `parts`-th row, from each first one.

    So a device's rows stay on it, where those of a part divide over the devices.
    """
    rows = batch.reshape(-1, parts, *batch.shape[1:])
    return [rows[:, part] for part in range(parts)]
