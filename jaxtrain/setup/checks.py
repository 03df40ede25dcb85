"""What does not fit the devices, or one another."""

from typing import Any

import jax
from jax.sharding import Mesh

from jaxtrain import data, plan, state
from jaxtrain.config import Config
from jaxtrain.config.schema import TrainConfig
from jaxtrain.data.examples import shape_text
from jaxtrain.errors import UsageError
from jaxtrain.models import Model
from jaxtrain.parallel.mesh import AnyMesh, bytes_per_device, memory_bytes


def check_mode(config: Config, mesh: AnyMesh) -> None:
    """Refuses pmap for anything but copies of the model that share a batch.

    Raises:
        UsageError: a mesh with other axes, or rules.
    """
    parallel = config.parallel
    if parallel.mode != "pmap":
        return
    if mesh.shape["data"] != mesh.size:
        raise UsageError(
            f"parallel.mode=pmap is data parallel only, but parallel.mesh={parallel.mesh!r} has "
            "other axes; set parallel.mode=jit, or parallel.mesh=data=-1"
        )
    if parallel.rules != "replicated":
        raise UsageError(
            f"parallel.mode=pmap does not read parallel.rules={parallel.rules!r}; set "
            "parallel.mode=jit, or parallel.rules=replicated"
        )


def check_divides(config: TrainConfig, devices: int, together: int) -> None:
    """Refuses a batch that does not divide over the devices that split it and the parts of a step.

    Args:
        config: the batch size and the parts.
        devices: how many of them.
        together: rows that have to be on one device and in one part.

    Raises:
        UsageError: names the nearest sizes that do.
    """
    size, parts = config.batch_size, config.accumulate
    if size % (devices * parts * together):
        near = sorted(set(plan.nearest_divisible(size, devices * parts * together)))
        over = [f"{devices} devices"] if devices > 1 else []
        over += [f"train.accumulate={parts} parts"] if parts > 1 else []
        over += ["pairs of rows, which data.augment mixes"] if together > 1 else []
        raise UsageError(
            f"train.batch_size={size} does not divide over {' and '.join(over)}; "
            f"try {' or '.join(map(str, near))}"
        )


def check_any_size(model: Model, variables: dict[str, Any], dataset: data.Dataset) -> None:
    """Refuses a model that takes the training images' size alone, if others are evaluated.

    Args:
        model: the network.
        variables: abstract, for training images.
        dataset: the splits.

    Raises:
        UsageError: it cannot be built for the others, or has other variables.
    """
    shape = dataset.eval.image_shape
    if shape == dataset.train.image_shape:
        return
    others = state.abstract_model(model, shape, dataset.num_classes)
    if others != variables:
        raise UsageError(
            f"data.eval_image_size: the model has other parameters for images of "
            f"{shape_text(shape)} than for {shape_text(dataset.train.image_shape)}, which it is "
            "trained on; set data.eval_image_size=None, or take a model for any size, as a resnet"
        )


def check_memory(tree: Any, mesh: AnyMesh) -> None:
    """Refuses a model whose variables alone are more than a device here holds.

    Raises:
        UsageError: names both sizes.
    """
    if not isinstance(mesh, Mesh):  # nobody knows how much those hold
        return
    try:
        limit = memory_bytes(mesh.local_devices[0])
    except jax.errors.JaxRuntimeError:  # they can only be compiled for
        return
    needed = bytes_per_device(tree)
    if needed > limit:
        raise UsageError(
            f"the model's variables (with the optimizer's) take {needed:,} bytes on each device, "
            f"which has {limit:,}; make the model smaller, or split it over devices with "
            "parallel.mesh and parallel.rules"
        )
