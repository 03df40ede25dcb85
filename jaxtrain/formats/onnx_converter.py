"""JAX to ONNX's operators, by jax2onnx."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax2onnx
import onnx

from jaxtrain.formats.contract import LOGITS, PROBABILITIES
from jaxtrain.formats.onnx_plugins import batch_first


def convert(
    logits_of: Callable[[jax.Array], jax.Array],
    name: str,
    image: jax.ShapeDtypeStruct,
    opset: int,
) -> Any:
    """The function as a valid `onnx.ModelProto`, of the input `name` to logits, probabilities."""

    def classify(image: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = logits_of(image)
        return logits, jax.nn.softmax(logits)

    with _quiet(), batch_first():
        model = jax2onnx.to_onnx(
            classify,
            [image],
            opset=opset,
            model_name="classifier",
            input_names=[name],
            output_names=[LOGITS, PROBABILITIES],
        )
    # These are jax2onnx's own shapes of what is in between; where one is wrong onnxruntime warns.
    del model.graph.value_info[:]
    model.ir_version = onnx.helper.find_min_ir_version_for(list(model.opset_import))
    onnx.checker.check_model(model, full_check=True)
    return model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings of plugins for other libraries, and of shapes that are not kept."""
    loggers = [logging.getLogger(name) for name in ("jax2onnx", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
