"""ONNX, made by jax2onnx, in one file; onnxruntime runs it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
import onnxruntime
from jax import export
from numpy.typing import NDArray

from jaxtrain.errors import UsageError, brief
from jaxtrain.formats.contract import INPUTS, LOGITS, Options, Source
from jaxtrain.formats.lowering import lowering
from jaxtrain.formats.reading import damaged, refuse_missing
from jaxtrain.formats.tracing import refuse_large, trace
from jaxtrain.tasks import Outputs

_FILE: Final = "model.onnx"
# The oldest that jax2onnx writes reductions for, of December 2022; onnxruntime knows it since 1.14.
_OPSET: Final = 18
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
    """Writes one file, of a graph from `image` or `features` to `logits` and `probabilities`.

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
    # Running a model needs neither of them, which take a second to import.
    try:
        import onnx  # noqa: PLC0415

        from jaxtrain.formats import onnx_converter  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise UsageError(
            f"format onnx needs {error.name} to export, which is not installed; "
            "pip install 'jaxtrain[onnx]'"
        ) from error
    refuse_large("onnx", source)
    with lowering("onnx"):
        (batch,) = export.symbolic_shape("batch")
        logits_of = trace(source, batch)
    image = jax.ShapeDtypeStruct((batch, *source.image_shape), source.dtype)
    try:
        model = onnx_converter.convert(logits_of, source.input, image, _OPSET)
        onnx.save(model, folder / _FILE)
        load(folder, LOGITS)(np.zeros((2, *source.image_shape), source.dtype))
    except OSError:  # it cannot be written
        raise
    except Exception as error:
        # What each raises where it knows no way is not of one kind.
        raise UsageError(
            "format onnx: jax2onnx cannot convert the model "
            f"({brief(error)}); export it as stablehlo or savedmodel"
        ) from error
    return {"files": {"model": _FILE}, "opset": _OPSET, "ir_version": model.ir_version}


def load(folder: Path, output: str) -> Outputs:
    """The model of such a folder, run by onnxruntime on the CPU.

    Args:
        folder: where `save` wrote it.
        output: which of its outputs, `LOGITS` or `PROBABILITIES`.

    Raises:
        UsageError: the file is missing or damaged.
    """
    path = folder / _FILE
    refuse_missing(path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _FATAL  # it raises what it logs as errors
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        inputs = [each.name for each in session.get_inputs()]
        outputs = [each.name for each in session.get_outputs()]
    except Exception as error:
        raise damaged(path, error) from error
    if len(inputs) != 1 or inputs[0] not in INPUTS or output not in outputs:
        raise UsageError(
            f"{path} takes {', '.join(inputs)} and gives {', '.join(outputs)}, not "
            f"{' or '.join(INPUTS)} and {output}; export the model again"
        )

    def run(images: NDArray[Any]) -> NDArray[np.float32]:
        (result,) = session.run([output], {inputs[0]: images})
        return result

    return run
