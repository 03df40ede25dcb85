"""A trained model, from a run's checkpoint: what evaluation, prediction and export start from."""

import dataclasses
import pathlib
from typing import Any

import jax
from jax.sharding import Mesh

from jaxtrain import checkpoint, models, state
from jaxtrain.config import Config
from jaxtrain.errors import CheckpointError
from jaxtrain.models import Model
from jaxtrain.parallel.mesh import data_mesh, on_mesh
from jaxtrain.tasks import CLASSIFICATION, Task


@dataclasses.dataclass(frozen=True)
class Predictor:
    """A model with its weights on the devices.

    Attributes:
        model: the network.
        task: what is made of its logits.
        variables: `TrainState.model`.
        abstract: its shapes, dtypes and shardings.
        mesh: the devices.
        class_names: one name a class, in label order.
        image_shape: shape of one example.
        step: finished updates of the weights.
    """

    model: Model
    task: Task
    variables: Any
    abstract: Any
    mesh: Mesh
    class_names: tuple[str, ...]
    image_shape: tuple[int, ...]
    step: int


def load(directory: pathlib.Path, step: int, config: Config) -> Predictor:
    """The model of one checkpoint step; no optimizer is built.

    Args:
        directory: the run's checkpoints.
        step: one that is there.
        config: the run's config; only its `model` section is read.

    Raises:
        CheckpointError: the step cannot be read, or is damaged.
    """
    meta = checkpoint.read_meta(directory, step)
    try:
        class_names = tuple(meta["class_names"])
        image_shape = tuple(meta["image_shape"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"checkpoint {directory / str(step)}: its meta has no class names or image shape"
        ) from error
    mesh = data_mesh(jax.local_devices())
    model = models.build(config.model, len(class_names))
    abstract = on_mesh(state.abstract_model(model, image_shape, len(class_names)), mesh)
    variables = checkpoint.restore_model(directory, step, abstract)
    return Predictor(
        model, CLASSIFICATION, variables, abstract, mesh, class_names, image_shape, step
    )
