"""JAX to TFLite's operators: jax2tf's StableHLO, and TensorFlow's converter of it."""

import re
import warnings
from collections.abc import Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp

from jaxtrain.errors import UsageError, one_line
from jaxtrain.formats.captured import captured_stderr
from jaxtrain.formats.contract import IMAGE, Source
from jaxtrain.formats.lowering import lowering
from jaxtrain.formats.tensorflow import tf
from jaxtrain.formats.tracing import Rule, trace

from jax.experimental import jax2tf  # isort: skip - after TensorFlow was told to be quiet

_MOST_TEXT: Final = 300
_IMAGES: Final = ("NHWC", "HWIO", "NHWC")


def convert(source: Source, quantize: str | None) -> bytes:
    """The content of a file, of a graph from one example to its logits.

    For a batch of any size the converter would compute every shape while the model runs, and fuse
    nothing; for one example it folds normalisation into convolutions and knows activations.

    Args:
        source: the model.
        quantize: `float16` or `int8` weights, or None; of images `int8` activations as well, with
            the scales of `source.calibration()`, but for operators that have no such form.
            Features have a scale each, and one for all would leave little of some.

    Raises:
        UsageError: there is an operation that TFLite's operators cannot express.
    """
    converter = _converter(source, quantize)
    with captured_stderr() as said:
        try:
            with warnings.catch_warnings():
                # It means those of an input that is quantized; this one is a cast of integers.
                warnings.filterwarnings("ignore", message="Statistics for quantized inputs")
                return bytes(converter.convert())
        except Exception as error:
            said.seek(0)
            error.add_note(said.read())
            raise UsageError(
                "format tflite: TensorFlow's converter cannot express the model in TFLite's "
                f"operators ({_reason(error)}); export it as stablehlo or savedmodel"
            ) from error


def _converter(source: Source, quantize: str | None) -> Any:
    """A `tf.lite.TFLiteConverter` of the model, told how to quantize."""
    in_integers = quantize == "int8" and source.input == IMAGE
    rules = _RULES | (_INT8_RULES if in_integers else {})
    with lowering("tflite"):
        logits = trace(source, 1, rules)
        function = tf.function(
            jax2tf.convert(logits, with_gradient=False, native_serialization_platforms=["cpu"]),
            autograph=False,
            input_signature=[
                tf.TensorSpec((1, *source.image_shape), source.dtype, name=source.input)
            ],
        )
        concrete = function.get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], function)
    if quantize is not None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if quantize == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if in_integers:
        sets = tf.lite.OpsSet
        converter.target_spec.supported_ops = [sets.TFLITE_BUILTINS_INT8, sets.TFLITE_BUILTINS]
        calibration = source.calibration()
        converter.representative_dataset = lambda: ([image[None]] for image in calibration)
    return converter


def _reason(error: Exception) -> str:
    """What the compiler says, without where it stands in which library."""
    found = re.search(r"error: (.+)", str(error))
    return (found[1] if found else one_line(error))[:_MOST_TEXT]


def _dot(lhs: Any, rhs: Any, **params: Any) -> Sequence[Any]:
    """A dense layer over the channels of images is a convolution of 1x1.

    The converter makes an invalid operator of some of them.
    """
    contracted, batched = (tuple(map(tuple, pair)) for pair in params["dimension_numbers"])
    if contracted == ((3,), (0,)) and batched == ((), ()) and (lhs.ndim, rhs.ndim) == (4, 2):
        kernel = rhs.reshape(1, 1, *rhs.shape)
        return [
            jax.lax.conv_general_dilated(lhs, kernel, (1, 1), "VALID", dimension_numbers=_IMAGES)
        ]
    return [jax.lax.dot_general_p.bind(lhs, rhs, **params)]


def _sum_pool(operand: Any, **params: Any) -> Sequence[Any]:
    """Padded sums over windows of pixels are a convolution of each channel with ones.

    TFLite's own pooling knows few paddings.
    """
    window, strides = params["window_dimensions"], params["window_strides"]
    (*_, channels), padding = operand.shape, params["padding"]
    of_pixels = operand.ndim == 4 and window[0] == window[-1] == strides[0] == strides[-1] == 1
    if not of_pixels or all(pair == (0, 0) for pair in padding):
        return [jax.lax.reduce_window_sum_p.bind(operand, **params)]
    sums = jax.lax.conv_general_dilated(
        operand,
        jnp.ones((*window[1:-1], 1, channels), operand.dtype),
        strides[1:-1],
        padding[1:-1],
        lhs_dilation=params["base_dilation"][1:-1],
        rhs_dilation=params["window_dilation"][1:-1],
        dimension_numbers=_IMAGES,
        feature_group_count=channels,
    )
    return [sums]


def _max_pool(operand: Any, **params: Any) -> Sequence[Any]:
    """Pads with the values at the edge, not with minus infinity, which no scale of integers fits.

    It is the same: a window that reaches over the edge holds the value there.
    """
    window, padding = params["window_dimensions"], params["padding"]
    dilated = {*params["base_dilation"], *params["window_dilation"]} != {1}
    if dilated or any(max(pair) >= side for side, pair in zip(window, padding, strict=True)):
        return [jax.lax.reduce_window_max_p.bind(operand, **params)]
    for axis, (low, high) in enumerate(padding):
        first = jax.lax.slice_in_dim(operand, 0, 1, axis=axis)
        last = jax.lax.slice_in_dim(operand, -1, None, axis=axis)
        if low or high:
            operand = jax.lax.concatenate([first] * low + [operand] + [last] * high, axis)
    unpadded = params | {"padding": ((0, 0),) * len(window)}
    return [jax.lax.reduce_window_max_p.bind(operand, **unpadded)]


def _erf(operand: Any, **params: Any) -> Sequence[Any]:
    """Within 4e-4, as in the usual approximation of GELU, where a step of an int8 is 8e-3.

    What the converter makes of the exact one divides, which integers cannot (see `Graph`).
    """
    return [jnp.tanh(2 / jnp.pi**0.5 * operand * (1 + 0.08943 * operand * operand))]


def _erfc(operand: Any, **params: Any) -> Sequence[Any]:
    (value,) = _erf(operand)
    return [1 - value]


_RULES: Final[dict[str, Rule]] = {"dot_general": _dot, "reduce_window_sum": _sum_pool}
_INT8_RULES: Final[dict[str, Rule]] = {
    "erf": _erf,
    "erfc": _erfc,
    "reduce_window_max": _max_pool,
}
