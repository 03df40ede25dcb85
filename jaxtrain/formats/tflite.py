"""TFLite, in float32, with float16 weights, or in int8; LiteRT runs it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from numpy.typing import NDArray

from jaxtrain.errors import UsageError
from jaxtrain.formats.captured import captured_stderr
from jaxtrain.formats.contract import INPUTS, LOGITS, Options, Source
from jaxtrain.formats.reading import damaged, refuse_missing
from jaxtrain.formats.tflite_graph import SIGNATURE, Graph
from jaxtrain.formats.tracing import refuse_large
from jaxtrain.tasks import Outputs

_FILE: Final = "model.tflite"
# Of the largest logit: runs of another batch size add in another order.
_SAME: Final = 1e-3

SNIPPET: Final = """\
import json

import numpy as np
from ai_edge_litert.interpreter import Interpreter

model = Interpreter("model.tflite").get_signature_runner("serving_default")
with open("classes.json", encoding="utf-8") as file:
    classes = json.load(file)
for image in np.load("images.npy"):
    (probabilities,) = model(image=image[None])["probabilities"]
    print(classes[probabilities.argmax()], f"{probabilities.max():.6f}")
"""


def save(source: Source, folder: Path, options: Options) -> Mapping[str, Any]:
    """Writes one file, of a graph from one `image` to its `logits` and `probabilities`.

    LiteRT can make it one for any number of them, unless the model does something in which the
    batch is not the first dimension. The image is uint8 (`features` are float32) and the outputs
    are float32 however the model is quantized.

    Args:
        source: the model; it computes in float32.
        folder: is empty.
        options: `quantize` is read.

    Returns:
        The file, the name of its signature, how it is quantized, how often it uses each operator,
        and whether it can take more than one image at once.

    Raises:
        UsageError: TFLite has no operator for something that the model does, or the model is
            larger than 2 GB, or TensorFlow is not installed.
    """
    # Running a model needs no TensorFlow, which takes seconds to import.
    try:
        from jaxtrain.formats import tflite_converter  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise UsageError(
            f"format tflite needs {error.name} to export, which is not installed; "
            "pip install 'jaxtrain[tf]'"
        ) from error
    refuse_large("tflite", source)
    content = tflite_converter.convert(source, options.quantize)
    graph = _graph(content, source.input)
    graph.free_batch()
    any_batch = _is_same_for_two(graph.content(), source)
    if not any_batch:
        graph = _graph(content, source.input)
    (folder / _FILE).write_bytes(graph.content())
    return {
        "files": {"model": _FILE},
        "signature": SIGNATURE,
        "quantize": options.quantize,
        "operators": dict(sorted(graph.operators().items())),
        "any_batch": any_batch,
    }


def _graph(content: bytes, name_of_input: str) -> Graph:
    """What was converted, with both outputs, if every LiteRT can run it."""
    graph = Graph(content)
    others = sorted(name for name in graph.operators() if name.startswith(("CUSTOM", "STABLEHLO")))
    if others:
        raise UsageError(
            f"format tflite: the model needs {', '.join(others)}, which are no operators that "
            "LiteRT has everywhere; export it as stablehlo or savedmodel"
        )
    if graph.divides_integers():
        raise UsageError(
            "format tflite: quantize=int8: the model divides by something that depends on the "
            "input, and LiteRT ends the process where that rounds to 0; use --quantize=float16"
        )
    graph.add_probabilities(name_of_input)
    return graph


def _is_same_for_two(content: bytes, source: Source) -> bool:
    """Whether two examples at once give what each gives alone."""
    images = np.random.RandomState(0).randint(0, 256, (2, *source.image_shape))
    images[1] //= 4  # noise alone may look alike to a network
    images = images.astype(source.dtype)
    with captured_stderr():
        try:
            run = _runner(Interpreter(model_content=content), LOGITS)
            alone = np.concatenate([run(images[:1]), run(images[1:])])
            together = run(images)
        except (RuntimeError, ValueError):  # shapes that do not fit
            return False
    return np.allclose(together, alone, rtol=0, atol=_SAME * np.abs(alone).max())


def load(folder: Path, output: str) -> Outputs:
    """The model of such a folder, run by LiteRT on all CPUs that this process may use.

    It is quick when n stays the same; for another one memory is laid out anew.

    Args:
        folder: where `save` wrote it.
        output: which of its outputs, `LOGITS` or `PROBABILITIES`.

    Raises:
        UsageError: the file is missing or damaged.
    """
    path = folder / _FILE
    refuse_missing(path)
    try:
        with captured_stderr():  # it says which kernels it takes
            threads = len(os.sched_getaffinity(0))
            return _runner(Interpreter(str(path), num_threads=threads), output)
    except (RuntimeError, ValueError, KeyError) as error:
        raise damaged(path, error) from error


def _runner(interpreter: Interpreter, output: str) -> Outputs:
    interpreter.allocate_tensors()
    inputs = {each["name"]: each for each in interpreter.get_input_details()}
    outputs = {each["name"]: each for each in interpreter.get_output_details()}
    (name,) = inputs.keys() & INPUTS  # a ValueError if it has neither
    source, target = inputs[name]["index"], outputs[output]["index"]
    any_batch = inputs[name]["shape_signature"][0] == -1

    def run(images: NDArray[Any]) -> NDArray[np.float32]:
        if not any_batch and len(images) != 1:
            return np.concatenate([run(image[None]) for image in images])
        if interpreter.get_input_details()[0]["shape"][0] != len(images):
            interpreter.resize_tensor_input(source, images.shape)
            interpreter.allocate_tensors()
        interpreter.set_tensor(source, images)
        interpreter.invoke()
        return interpreter.get_tensor(target)

    return run
