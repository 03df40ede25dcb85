import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import data_mesh

from jaxtrain.models import convolution
from jaxtrain.models.convolution import Conv, convolve
from jaxtrain.parallel.mesh import over_rows, replicated

RANDOM = np.random.RandomState(0)
INPUTS = RANDOM.standard_normal((16, 7, 6, 2)).astype(np.float32)


def reference(inputs, kernel, stride):
    """Sums over a window around each `stride`-th pixel in float64, with zeros outside."""
    side = kernel.shape[0]
    outside = side // 2
    padded = np.pad(
        inputs.astype(np.float64), ((0, 0), (outside, outside), (outside, outside), (0, 0))
    )
    height, width = (-(-size // stride) for size in inputs.shape[1:3])
    outputs = np.zeros((len(inputs), height, width, kernel.shape[-1]))
    for y in range(height):
        for x in range(width):
            window = padded[:, y * stride : y * stride + side, x * stride : x * stride + side]
            outputs[:, y, x] = np.tensordot(window, kernel, 3)
    return outputs


@pytest.mark.parametrize("side", [1, 3, 7])
@pytest.mark.parametrize("stride", [1, 2])
def test_pads_both_sides_alike(side, stride):
    layer = Conv(3, side, stride, jnp.float32)
    outputs, variables = layer.init_with_output(jax.random.key(0), INPUTS)
    kernel = np.asarray(variables["params"]["kernel"])
    assert kernel.shape == (side, side, 2, 3)
    np.testing.assert_allclose(outputs, reference(INPUTS, kernel, stride), atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_keeps_the_kernel_in_float32(dtype):
    outputs, variables = Conv(3, 3, 1, dtype).init_with_output(jax.random.key(0), INPUTS)
    assert outputs.dtype == dtype
    assert variables["params"]["kernel"].dtype == jnp.float32


def gradients(function, inputs, kernel, cotangent, stride):
    _, pull = jax.vjp(lambda *arrays: function(*arrays, stride), inputs, kernel)
    return pull(cotangent)


def assert_derived(found, kernel, cotangent, stride):
    """Compares gradients with those that JAX derives of a plain convolution."""
    wanted = gradients(convolution._convolve, INPUTS, kernel, cotangent, stride)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-4), found, wanted)


def cotangent(side, stride):
    kernel = RANDOM.standard_normal((side, side, 2, 3)).astype(np.float32)
    outputs = convolve(INPUTS, kernel, stride)
    return kernel, RANDOM.standard_normal(outputs.shape).astype(np.float32)


@pytest.mark.parametrize("part_bytes", [2**30, INPUTS.nbytes / 4])
@pytest.mark.parametrize(("side", "stride"), [(3, 1), (3, 2), (1, 2), (7, 2)])
def test_gradients_are_those_that_jax_derives(monkeypatch, part_bytes, side, stride):
    monkeypatch.setattr(convolution, "_PART_BYTES", part_bytes)
    kernel, to_outputs = cotangent(side, stride)
    run = jax.jit(functools.partial(gradients, convolve, stride=stride))
    assert_derived(run(INPUTS, kernel, to_outputs), kernel, to_outputs, stride)


def test_gradients_in_parts_agree_on_eight_devices(monkeypatch):
    monkeypatch.setattr(convolution, "_PART_BYTES", INPUTS.nbytes / 2)
    mesh = data_mesh(jax.devices())
    rows, everywhere = over_rows(mesh), replicated(mesh)
    kernel, to_outputs = cotangent(3, 1)
    run = functools.partial(gradients, convolve, stride=1)
    spread = jax.jit(run, in_shardings=(rows, everywhere, rows))
    assert_derived(spread(INPUTS, kernel, to_outputs), kernel, to_outputs, 1)


@pytest.mark.parametrize(
    ("shape", "dtype", "parts"),
    [
        ((16, 28, 28, 16), "float32", 1),
        ((128, 28, 28, 16), "float32", 8),
        ((127, 28, 28, 16), "float32", 1),
        ((100, 28, 28, 16), "float32", 4),
        ((128, 28, 28, 16), "bfloat16", 1),
        ((4096, 56, 56, 64), "float32", 16),
    ],
)
def test_large_batches_are_split_where_they_divide(shape, dtype, parts):
    assert convolution._parts(jax.ShapeDtypeStruct(shape, dtype)) == parts
