"""The model of an exported file, run by the format's own runtime."""

import dataclasses
from pathlib import Path

from jaxtrain import formats
from jaxtrain.config import Config
from jaxtrain.formats import beside
from jaxtrain.tasks import Outputs


@dataclasses.dataclass(frozen=True)
class Exported:
    """A `Predictor`.

    Attributes:
        path: the export's folder.
        description: what it says of itself.
        logits: the logits of images, by its runtime.
    """

    path: Path
    description: beside.Description
    logits: Outputs

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name a class, in the order of the logits."""
        return self.description.class_names

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(height, width, channels), or (features,), of what it takes."""
        return self.description.image_shape

    @property
    def step(self) -> int:
        """Finished updates of its weights."""
        return self.description.step

    @property
    def config(self) -> Config:
        """What it was trained with."""
        return self.description.config


def open_export(path: Path) -> Exported:
    """The model of an export's folder.

    Raises:
        UsageError: it is none, is damaged, or needs what is not installed.
    """
    description = beside.read(path)
    load = formats.exporter(description.format).load
    return Exported(path, description, load(path, "logits"))
