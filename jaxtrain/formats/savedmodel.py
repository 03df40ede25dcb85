"""TensorFlow's SavedModel, made by jax2tf; it is served by TensorFlow alone."""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxtrain.errors import UsageError, brief, one_line
from jaxtrain.formats.captured import captured_stderr
from jaxtrain.formats.contract import LOGITS, PROBABILITIES, Options, Source
from jaxtrain.formats.lowering import apply_by_name, by_name, lowering
from jaxtrain.formats.reading import refuse_missing
from jaxtrain.formats.tensorflow import tf
from jaxtrain.tasks import Outputs

from jax.experimental import jax2tf  # isort: skip - after TensorFlow was told to be quiet

_PLATFORMS: Final = ("cpu", "cuda", "rocm", "tpu")
_SERVING: Final = "serving_default"
_SIGNATURES: Final = {LOGITS: LOGITS, PROBABILITIES: _SERVING}
_MOST_TEXT: Final = 300
_FILES: Final = (
    "saved_model.pb",
    "variables/variables.index",
    "variables/variables.data-00000-of-00001",
)

SNIPPET: Final = """\
import numpy as np
import tensorflow as tf

model = tf.saved_model.load(".")
images = tf.constant(np.load("images.npy"))
outputs = model.signatures["serving_default"](image=images)
for name, probabilities in zip(outputs["class_name"].numpy(), outputs["probabilities"].numpy()):
    print(name.decode(), f"{probabilities.max():.6f}")
"""


def save(source: Source, folder: Path, options: Options) -> Mapping[str, Any]:
    """Writes a SavedModel whose program is lowered for every platform that TensorFlow runs on.

    Its variables are the model's, by name, in `weights`; its signatures are

    - `serving_default`: `image` uint8 `[batch, H, W, C]` (or `features` float32 `[batch, D]`) to
      `probabilities` float32 `[batch, classes]`, `class_id` int64 `[batch]` and `class_name`
      string `[batch]`, in UTF-8;
    - `logits`: the same to `logits` float32 `[batch, classes]`.

    Args:
        source: the model.
        folder: is empty.
        options: none is read.

    Returns:
        The names of the signatures' outputs, and the platforms.

    Raises:
        UsageError: the model cannot be lowered for a batch of any size, or TensorFlow is too old
            for one of its operations.
        OSError: it cannot be written.
    """
    del options
    model = tf.Module()
    model.weights = {name: tf.Variable(leaf) for name, leaf in by_name(source.variables).items()}
    logits, serve = _functions(source, dict(model.weights))
    signatures = {_SERVING: serve, LOGITS: logits}
    try:
        with captured_stderr():
            tf.saved_model.save(model, str(folder), signatures)
            load(folder, LOGITS)(np.zeros((2, *source.image_shape), source.dtype))
    except tf.errors.InvalidArgumentError as error:
        found = re.search(r"error: (.+)", one_line(error))  # behind where it stands in the graph
        reason = found[1] if found else one_line(error)
        raise UsageError(
            "format savedmodel: TensorFlow cannot run an operation of the model "
            f"({reason[:_MOST_TEXT]}); export it as stablehlo or onnx"
        ) from error
    except tf.errors.OpError as error:  # its writes fail so
        raise OSError(brief(error)) from error
    return {
        "signatures": {
            name: sorted(function.structured_outputs) for name, function in signatures.items()
        },
        "platforms": list(_PLATFORMS),
    }


def _functions(source: Source, weights: dict[str, Any]) -> tuple[Any, Any]:
    """The two signatures, traced; the program is in the first one, which the other calls."""
    converted = jax2tf.convert(
        apply_by_name(source),
        polymorphic_shapes=[None, "(b, ...)"],
        with_gradient=False,
        native_serialization_platforms=_PLATFORMS,
    )
    # AutoGraph would rewrite all of JAX, which takes 20 s.
    traced = functools.partial(
        tf.function,
        input_signature=[
            tf.TensorSpec((None, *source.image_shape), source.dtype, name=source.input)
        ],
        autograph=False,
    )

    @traced
    def logits(image: Any) -> dict[str, Any]:
        return {LOGITS: converted(weights, image)}

    @traced
    def serve(image: Any) -> dict[str, Any]:
        values = logits(image)[LOGITS]
        class_id = tf.argmax(values, axis=-1, output_type=tf.int64)
        return {
            PROBABILITIES: tf.nn.softmax(values),
            "class_id": class_id,
            "class_name": tf.gather(tf.constant(source.class_names), class_id),
        }

    with lowering("savedmodel"):
        return logits.get_concrete_function(), serve.get_concrete_function()


def load(folder: Path, output: str) -> Outputs:
    """The model of such a folder, run by TensorFlow on the CPU.

    Args:
        folder: where `save` wrote it.
        output: which of its outputs, `LOGITS` or `PROBABILITIES`.

    Raises:
        UsageError: a file of it is missing or damaged.
    """
    refuse_missing(*(folder / name for name in _FILES))
    try:
        model = tf.saved_model.load(str(folder))
        signature = model.signatures[_SIGNATURES[output]]
    # What is wrong in a damaged file may be anything.
    except Exception as error:
        raise UsageError(
            f"{folder / _FILES[0]} and its variables cannot be read "
            f"({one_line(error)[:_MOST_TEXT]}): "
            "one of them is damaged, or was made by a newer TensorFlow; export the model again"
        ) from error
    return functools.partial(_run, model, signature, output)


def _run(model: Any, signature: Any, output: str, images: NDArray[Any]) -> Any:
    """One output; `model` is here as its variables would be freed without it."""
    del model
    (name,) = signature.structured_input_signature[1]
    return signature(**{name: tf.constant(images)})[output].numpy()
