"""What an exporter is given and gives back. Each format is one module with an exporter's names."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from jaxtrain.data import examples
from jaxtrain.tasks import Outputs

# What the input and the outputs are called, wherever a format lets them have names.
IMAGE: Final = "image"
FEATURES: Final = "features"
INPUTS: Final = (IMAGE, FEATURES)  # a model has one of them
LOGITS: Final = "logits"
PROBABILITIES: Final = "probabilities"


@dataclasses.dataclass(frozen=True)
class Options:
    """How to export; a format reads those that its row in `FORMATS` names.

    Attributes:
        platforms: what a program is lowered for, one or more.
        quantize: `float16` or `int8` weights; None: float32.
    """

    platforms: tuple[str, ...] = ("cpu",)
    quantize: str | None = None


@dataclasses.dataclass(frozen=True)
class Source:
    """A trained model as a pure function.

    Attributes:
        apply: (variables, uint8 images `[b, H, W, C]` or float32 features `[b, D]`) to float32
            logits `[b, classes]`, with the normalisation inside; traceable by JAX, with a symbolic
            b too.
        variables: tree of NumPy arrays: parameters and all other collections.
        image_shape: (height, width, channels), or (features,).
        class_names: one name a class, in label order.
        calibration: reads some training images or features, as they are evaluated.
    """

    apply: Callable[[Any, Any], Any]
    variables: Any
    image_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    calibration: Callable[[], NDArray[Any]]

    @property
    def input(self) -> str:
        """What the input is called."""
        return IMAGE if examples.is_image(self.image_shape) else FEATURES

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the input."""
        return examples.dtype_of(self.image_shape)


class Exporter(Protocol):
    """The names in the module of a format.

    Attributes:
        SNIPPET: a Python program that needs the format's runtime and NumPy alone. It runs in the
            export's folder, loads the model from there, classifies the images of `images.npy`
            (uint8 `[n, H, W, C]`), and prints for each one the name of its class and the
            probability with 6 decimals, as in `cat 0.987654`. It stands in the export's README.
            With `features` for each `image` and `images` it is that of a model of features.
    """

    SNIPPET: str

    def save(self, source: Source, folder: Path, options: Options) -> Mapping[str, Any]:
        """Writes the model into an empty folder; nothing there has the name of `beside.FILES`.

        Returns:
            What `signature.json` says beside what it says for every format, as JSON values.

        Raises:
            UsageError: the model, or this choice of options, cannot be exported to this format;
                names what it is and what to do.
            OSError: it cannot be written.
        """

    def load(self, folder: Path, output: str) -> Outputs:
        """The model of such a folder, run by the format's own runtime, for any n of examples.

        Args:
            folder: where `save` wrote it.
            output: which of its outputs, `LOGITS` or `PROBABILITIES`.

        Raises:
            UsageError: a file of it is missing or damaged.
        """
