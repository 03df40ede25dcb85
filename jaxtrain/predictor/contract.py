"""What every trained model can do, wherever it comes from."""

import dataclasses
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from jaxtrain import data
from jaxtrain.config import Config
from jaxtrain.config.schema import DataConfig
from jaxtrain.data.examples import is_image, shape_text
from jaxtrain.errors import UsageError


class Predictor(Protocol):
    """A trained model that classifies images, or vectors of features."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name a class, in label order."""

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(height, width, channels), or (features,), of what it takes."""

    @property
    def step(self) -> int:
        """Finished updates of its weights."""

    @property
    def config(self) -> Config:
        """What it was trained with."""

    def logits(self, images: NDArray[Any]) -> NDArray[np.float32]:
        """Logits `[n, classes]` of images uint8 `[n, H, W, C]` or features float32 `[n, D]`.

        Each n may be compiled anew.
        """


def open_split(
    model: Predictor,
    config: DataConfig,
    name: str | None,
    progress: data.Progress = data.silent,
) -> data.Split:
    """Examples for a model, brought to the size of those that it was evaluated on.

    Args:
        model: the model.
        config: where the examples are.
        name: the split's; None: the one that training was evaluated on.
        progress: told how far it is where the data takes long; called from threads.

    Raises:
        UsageError: they cannot be brought to that size, or are of other classes.
    """
    sized = config
    if is_image(model.image_shape):
        sized = dataclasses.replace(
            config,
            image_size=model.image_shape[:2],
            eval_image_size=None,
            eval_crop=model.config.data.eval_crop,
        )
        if config.source in data.FILE_SOURCES:
            background = model.config.data.background
            sized = dataclasses.replace(sized, channels=model.image_shape[2], background=background)
    split = data.open_split(sized, name, model.class_names, progress)
    if split.image_shape != model.image_shape:
        raise UsageError(
            f"split {split.name!r} has {_examples_text(split.image_shape)}, but the model was "
            f"trained on {_examples_text(model.image_shape)}; give data like what it was trained on"
        )
    return split


def _examples_text(shape: tuple[int, ...]) -> str:
    if is_image(shape):
        return f"images of {shape[2]} channels"
    return f"examples of {shape_text(shape)}"
