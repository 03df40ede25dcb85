"""What jax2onnx 0.13 makes of some primitives is replaced where the batch is the first dimension.

Pooling of images it writes as pooling over four dimensions, which onnxruntime refuses; reshapes and
broadcasts it computes from shapes that it takes apart while running, ten operators for one.
"""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final

import jax.numpy as jnp
import numpy as np
from jax2onnx.plugins import plugin_system

# Of an equation's context, its one operand, the shape of that, and the shape and the parameters of
# the result: the result, or None where the library's own way is to be taken.
_Lower = Callable[[Any, Any, tuple[Any, ...], tuple[Any, ...], dict[str, Any]], Any]


@contextlib.contextmanager
def batch_first() -> Iterator[None]:
    """Replaces them, until it ends."""
    cumsum = jnp.cumsum
    with warnings.catch_warnings():
        # It leaves out a plugin whose import warns, where warnings are errors.
        warnings.simplefilter("ignore")
        plugin_system.import_all_plugins()
    # It puts its own there for good, which takes fewer arguments; a traced program needs none.
    setattr(jnp, "cumsum", cumsum)  # noqa: B010 - for mypy, which knows that it is a function
    registry = plugin_system.PLUGIN_REGISTRY
    before = {name: registry[name] for name in _LOWERINGS}
    registry.update({name: _Plugin(_LOWERINGS[name], before[name]) for name in _LOWERINGS})
    try:
        yield
    finally:
        registry.update(before)


class _Plugin(plugin_system.PrimitiveLeafPlugin):
    def __init__(self, lower: _Lower, general: Any) -> None:
        self._lower = lower
        self._general = general

    def lower(self, ctx: Any, eqn: Any) -> None:
        """Adds the equation's operators to the graph."""
        (result,) = eqn.outvars
        shape = tuple(eqn.invars[0].aval.shape)
        if len(eqn.invars) == 1 and shape and not isinstance(shape[0], int):
            operand = ctx.get_value_for_var(eqn.invars[0], name_hint=ctx.fresh_name("operand"))
            value = self._lower(ctx, operand, shape, tuple(result.aval.shape), dict(eqn.params))
            if value is not None:
                value.dtype = operand.dtype
                ctx.bind_value_for_var(result, value)
                return
        self._general.lower(ctx, eqn)


def _max_pool(
    ctx: Any, operand: Any, shape: tuple[Any, ...], result: tuple[Any, ...], params: dict[str, Any]
) -> Any:
    attributes = _pool(shape, params)
    if attributes is None:
        return None
    images = _add(ctx, "Transpose", operand, perm=[0, 3, 1, 2])
    return _add(ctx, "Transpose", _add(ctx, "MaxPool", images, **attributes), perm=[0, 2, 3, 1])


def _sum_pool(
    ctx: Any, operand: Any, shape: tuple[Any, ...], result: tuple[Any, ...], params: dict[str, Any]
) -> Any:
    """The average over each window, padding included, times its size."""
    attributes = _pool(shape, params)
    if attributes is None:
        return None
    images = _add(ctx, "Transpose", operand, perm=[0, 3, 1, 2])
    means = _add(ctx, "AveragePool", images, count_include_pad=1, **attributes)
    size = np.float32(math.prod(attributes["kernel_shape"]))
    sums = _add(ctx, "Mul", means, _constant(ctx, size))
    return _add(ctx, "Transpose", sums, perm=[0, 2, 3, 1])


def _pool(shape: tuple[Any, ...], params: dict[str, Any]) -> dict[str, Any] | None:
    """ONNX's attributes of windows over the pixels of `[batch, H, W, channels]`, if they are."""
    window, strides = params["window_dimensions"], params["window_strides"]
    padding = params["padding"]
    plain = (
        len(shape) == 4
        and all(each[0] == each[-1] == 1 for each in (window, strides))
        and padding[0] == padding[-1] == (0, 0)
        and {*params["base_dilation"], *params["window_dilation"]} == {1}
    )
    if not plain:
        return None
    (top, bottom), (left, right) = padding[1:-1]
    return {
        "kernel_shape": list(window[1:-1]),
        "strides": list(strides[1:-1]),
        "pads": [top, left, bottom, right],
    }


def _reshape(
    ctx: Any, operand: Any, shape: tuple[Any, ...], result: tuple[Any, ...], params: dict[str, Any]
) -> Any:
    if params["dimensions"] is not None or not _keeps_batch(shape, result):
        return None
    return _add(ctx, "Reshape", operand, _constant(ctx, np.asarray([-1, *result[1:]], np.int64)))


def _broadcast(
    ctx: Any, operand: Any, shape: tuple[Any, ...], result: tuple[Any, ...], params: dict[str, Any]
) -> Any:
    """Dimensions of size 1 are put in, and then expanded."""
    dimensions = params["broadcast_dimensions"]
    if dimensions[0] != 0 or not _keeps_batch(shape, result):
        return None
    sizes = dict(zip(dimensions, shape, strict=True))
    with_ones = [-1, *(sizes.get(axis, 1) for axis in range(1, len(result)))]
    value = operand
    if len(result) != len(shape):
        value = _add(ctx, "Reshape", value, _constant(ctx, np.asarray(with_ones, np.int64)))
    if tuple(with_ones[1:]) == result[1:]:
        return value
    # A 1 here leaves the batch as it is.
    return _add(ctx, "Expand", value, _constant(ctx, np.asarray([1, *result[1:]], np.int64)))


def _keeps_batch(shape: tuple[Any, ...], result: tuple[Any, ...]) -> bool:
    """Whether the first dimension is the batch before and after, and nothing else depends on it."""
    fixed = all(isinstance(size, int) and size > 0 for size in (*shape[1:], *result[1:]))
    return bool(result) and bool(result[0] == shape[0]) and fixed


def _add(ctx: Any, operator: str, *inputs: Any, **attributes: Any) -> Any:
    outputs = [ctx.fresh_name(operator.lower())]
    return getattr(ctx.builder, operator)(*inputs, _outputs=outputs, **attributes)


def _constant(ctx: Any, array: Any) -> Any:
    return ctx.builder.add_initializer_from_array(ctx.fresh_name("constant"), np.asarray(array))


_LOWERINGS: Final[dict[str, _Lower]] = {
    "broadcast_in_dim": _broadcast,
    "reduce_window_max": _max_pool,
    "reduce_window_sum": _sum_pool,
    "reshape": _reshape,
}
