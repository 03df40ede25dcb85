"""A trained model, from a run's checkpoint: what evaluation, prediction and export start from."""

import dataclasses
from typing import Any

from jax.sharding import Mesh

from jaxtrain import checkpoint, models, state
from jaxtrain.config import Config, from_dict
from jaxtrain.config.schema import ParallelConfig
from jaxtrain.errors import CheckpointError, UsageError
from jaxtrain.files import AnyPath
from jaxtrain.models import Model
from jaxtrain.parallel.layout import parameter_shardings
from jaxtrain.parallel.mesh import all_devices, build_mesh, on_mesh, with_shardings
from jaxtrain.step import Normalise, normalisation
from jaxtrain.tasks import CLASSIFICATION, Task


@dataclasses.dataclass(frozen=True)
class Predictor:
    """A model with its weights on the devices.

    Attributes:
        model: the network.
        normalise: what it sees of an image.
        task: what is made of its logits.
        variables: `TrainState.model`.
        abstract: its shapes, dtypes and shardings.
        mesh: the devices.
        class_names: one name a class, in label order.
        image_shape: shape of one example.
        step: finished updates of the weights.
        config: the config that they were trained with.
    """

    model: Model
    normalise: Normalise
    task: Task
    variables: Any
    abstract: Any
    mesh: Mesh
    class_names: tuple[str, ...]
    image_shape: tuple[int, ...]
    step: int
    config: Config


def load(directory: AnyPath, step: int, parallel: ParallelConfig) -> Predictor:
    """The model of one checkpoint step, as its meta describes it; no optimizer is built.

    Args:
        directory: the run's checkpoints.
        step: one that is there.
        parallel: how it is to lie on the devices that are here.

    Raises:
        CheckpointError: the step cannot be read, or is damaged.
        UsageError: its model, such as a user's own module, cannot be built any more, or
            `parallel` does not fit the devices or the model.
    """
    meta = checkpoint.read_meta(directory, step)
    try:
        config = from_dict(meta["config"])
        class_names = tuple(meta["class_names"])
        image_shape = tuple(meta["image_shape"])
    except (KeyError, TypeError, UsageError) as error:
        raise CheckpointError(
            f"checkpoint {directory / str(step)}: its meta does not describe a model ({error})"
        ) from error
    mesh = build_mesh(parallel.mesh, all_devices())
    model = models.build(config.model, len(class_names))
    variables = state.abstract_model(model, image_shape, len(class_names))
    of_params = parameter_shardings(parallel.rules, variables["params"], mesh)
    abstract = on_mesh(variables, mesh) | {"params": with_shardings(variables["params"], of_params)}
    variables = checkpoint.restore_model(directory, step, abstract)
    return Predictor(
        model=model,
        normalise=normalisation(config.data, image_shape),
        task=CLASSIFICATION,
        variables=variables,
        abstract=abstract,
        mesh=mesh,
        class_names=class_names,
        image_shape=image_shape,
        step=step,
        config=config,
    )
