"""ONNX, made by jax2onnx, in one file; onnxruntime runs it."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import jax
import jax2onnx
import numpy as np
import onnx
import onnxruntime
from jax import export
from numpy.typing import NDArray

from jaxtrain.errors import UsageError, one_line
from jaxtrain.formats.contract import INPUT, LOGITS, PROBABILITIES, Options, Outputs, Source
from jaxtrain.formats.lowering import lowering
from jaxtrain.formats.onnx_plugins import batch_first
from jaxtrain.formats.tracing import refuse_large, trace

_FILE: Final = "model.onnx"
# The oldest that jax2onnx writes reductions for, of December 2022; onnxruntime knows it since 1.14.
_OPSET: Final = 18
_MOST_TEXT: Final = 300
_FATAL: Final = 4

SNIPPET: Final = """\
import json

import numpy as np
import onnxruntime

model = onnxruntime.InferenceSession("model.onnx")
with open("classes.json", encoding="utf-8") as file:
    classes = json.load(file)
(outputs,) = model.run(["probabilities"], {"image": np.load("images.npy")})
for probabilities in outputs:
    print(classes[probabilities.argmax()], f"{probabilities.max():.6f}")
"""


def save(source: Source, folder: Path, options: Options) -> Mapping[str, Any]:
    """Writes one file, of a graph from `image` to `logits` and `probabilities`.

    Args:
        source: the model; it computes in float32.
        folder: is empty.
        options: none is read.

    Returns:
        The file, the version of ONNX's operators (opset), and that of its file format (IR).

    Raises:
        UsageError: the model holds an operation that jax2onnx or onnxruntime does not know, or it
            is larger than 2 GB, or it cannot be lowered for a batch of any size.
    """
    del options
    refuse_large("onnx", source)
    with lowering("onnx"):
        (batch,) = export.symbolic_shape("batch")
        logits_of = trace(source, batch)
    image = jax.ShapeDtypeStruct((batch, *source.image_shape), np.uint8)
    try:
        model = _convert(logits_of, image)
        onnx.save(model, folder / _FILE)
        load(folder, LOGITS)(np.zeros((2, *source.image_shape), np.uint8))
    except OSError:  # it cannot be written
        raise
    except Exception as error:
        # What each raises where it knows no way is not of one kind.
        raise UsageError(
            "format onnx: jax2onnx cannot convert the model "
            f"({type(error).__name__}: {one_line(error)[:_MOST_TEXT]}); export it as stablehlo or "
            "savedmodel"
        ) from error
    return {"files": {"model": _FILE}, "opset": _OPSET, "ir_version": model.ir_version}


def _convert(logits_of: Callable[[jax.Array], jax.Array], image: jax.ShapeDtypeStruct) -> Any:
    """The function as a valid `onnx.ModelProto`."""

    def classify(image: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = logits_of(image)
        return logits, jax.nn.softmax(logits)

    with _quiet(), batch_first():
        model = jax2onnx.to_onnx(
            classify,
            [image],
            opset=_OPSET,
            model_name="classifier",
            input_names=[INPUT],
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


def load(folder: Path, output: str) -> Outputs:
    """The model of such a folder, run by onnxruntime on the CPU.

    Args:
        folder: where `save` wrote it.
        output: which of its outputs, `LOGITS` or `PROBABILITIES`.

    Raises:
        UsageError: the file is missing or damaged.
    """
    path = folder / _FILE
    if not path.is_file():
        raise UsageError(f"{path} is missing; export the model again")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _FATAL  # it raises what it logs as errors
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        inputs = [each.name for each in session.get_inputs()]
        outputs = [each.name for each in session.get_outputs()]
    except Exception as error:
        raise UsageError(
            f"{path} is damaged ({type(error).__name__}: {one_line(error)[:_MOST_TEXT]}); export "
            "the model again"
        ) from error
    if inputs != [INPUT] or output not in outputs:
        raise UsageError(
            f"{path} takes {', '.join(inputs)} and gives {', '.join(outputs)}, not {INPUT} and "
            f"{output}; export the model again"
        )

    def run(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        (result,) = session.run([output], {INPUT: images})
        return result

    return run
