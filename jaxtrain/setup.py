"""Config to Run: everything that is decided before the first step, and nothing written yet."""

import dataclasses
import functools
import importlib.metadata
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxtrain import augment, data, models, optimizer, plan, state, tasks
from jaxtrain.config import Config, to_dict
from jaxtrain.config.schema import TrainConfig
from jaxtrain.errors import UsageError
from jaxtrain.feed import is_resident
from jaxtrain.parallel.compile import one_call
from jaxtrain.parallel.mesh import (
    data_mesh,
    local_devices,
    memory_bytes,
    on_cpu,
    on_mesh,
    replicated,
)
from jaxtrain.state import TrainState
from jaxtrain.step import Fixed, normalisation

# Saves a tenth of the time of a small MLP's step.
_STEPS_PER_CALL = 10

_VERSIONED = (
    "jaxtrain",
    "jax",
    "flax",
    "optax",
    "orbax-checkpoint",
    "numpy",
    "pillow",
    "tensorflow-datasets",
)


@dataclasses.dataclass(frozen=True)
class Run:
    """A checked run.

    Attributes:
        config: the resolved config.
        dataset: the training and evaluation splits and the classes.
        sampler: step to example indices of the training split.
        plan: steps and events.
        mesh: the devices.
        fixed: model, augmentation, loss, optimizer and schedule.
        create: `seed` to the state before the first update; pure.
        abstract: the state's shapes, dtypes and shardings.
        steps_per_call: the most updates in one call of the compiled step.
    """

    config: Config
    dataset: data.Dataset
    sampler: data.Sampler
    plan: plan.Plan
    mesh: Mesh
    fixed: Fixed
    create: Callable[..., TrainState]
    abstract: TrainState
    steps_per_call: int

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return self.dataset.train.image_shape

    @property
    def fingerprints(self) -> dict[str, str]:
        """Checksums of the splits by role."""
        return {"train": self.dataset.train.fingerprint, "eval": self.dataset.eval.fingerprint}

    def create_state(self) -> TrainState:
        """The state before the first update, on the devices."""
        compiled = jax.jit(
            self.create, out_shardings=replicated(self.mesh), compiler_options=one_call(self.mesh)
        )
        return compiled(seed=np.uint32(self.config.seed))


def build(config: Config, devices: int | None = None) -> Run:
    """Checks a config against its data, its model and the devices.

    Args:
        config: the resolved config.
        devices: how many devices the batch must divide over; None: those that are here.

    Raises:
        UsageError: an unknown name, a key that nothing reads, missing or bad data, a batch that
            does not divide over the devices, a warm-up that does not fit, or a model that does
            not take the images or give the classes.
    """
    mesh = data_mesh(local_devices())
    dataset = data.open_dataset(config.data)
    sampler = data.Sampler(dataset.train.size, config.train.batch_size, config.seed)
    run_plan = build_plan(config, dataset.train.size)
    _check_divides(config.train, devices or mesh.size)
    schedule = build_schedule(config, run_plan)
    model = models.build(config.model, dataset.num_classes)
    image_shape = dataset.train.image_shape
    variables = state.abstract_model(model, image_shape, dataset.num_classes)
    _check_memory(variables, mesh)
    transformation = optimizer.build(config.optimizer, variables["params"])
    convolves = state.has_convolution(model, variables, image_shape)
    fixed = Fixed(
        model=model,
        augment=_augment(config.data.augment, image_shape),
        normalise=normalisation(config.data, image_shape),
        loss=_loss(config, dataset),
        optimizer=transformation,
        schedule=schedule,
        report_steps=config.report.every_steps,
        accumulate=config.train.accumulate,
        unroll=convolves and on_cpu(mesh),
    )
    create = functools.partial(state.create, model, transformation, image_shape=image_shape)
    abstract = on_mesh(jax.eval_shape(create, seed=np.uint32(config.seed)), mesh)
    _check_memory(abstract, mesh)
    steps_per_call = _steps_per_call(config, dataset.train, mesh, convolves=convolves)
    return Run(config, dataset, sampler, run_plan, mesh, fixed, create, abstract, steps_per_call)


def _augment(text: str, image_shape: tuple[int, ...]) -> augment.Augment:
    made = augment.build(text)
    made.check(image_shape)
    return made


def _loss(config: Config, dataset: data.Dataset) -> tasks.Loss:
    weights = tasks.parse_class_weights(
        config.data.class_weights, dataset.train.labels, dataset.num_classes
    )
    return tasks.training_loss(config.train.label_smoothing, weights)


def _steps_per_call(config: Config, split: data.Split, mesh: Mesh, *, convolves: bool) -> int:
    """`train.steps_per_call`, or what suits the model and the place of the data.

    Raises:
        UsageError: several, where the data is not on the devices or XLA would crawl.
    """
    asked = config.train.steps_per_call
    if asked == 1:
        return 1
    resident = is_resident(split, config.data.cache, mesh)
    if asked and not resident:
        raise UsageError(
            f"train.steps_per_call={asked} needs the examples on the devices; set "
            "data.cache=device, or train.steps_per_call=1"
        )
    if asked and convolves and on_cpu(mesh):
        # 20 times, with jax 0.10.2
        raise UsageError(
            f"train.steps_per_call={asked} makes convolutions many times slower on CPU devices; "
            "set train.steps_per_call=1"
        )
    return asked or (_STEPS_PER_CALL if resident and not convolves else 1)


def _check_divides(config: TrainConfig, devices: int) -> None:
    """Refuses a batch that does not divide over the devices and the parts of a step.

    Raises:
        UsageError: names the nearest sizes that do.
    """
    size, parts = config.batch_size, config.accumulate
    if size % (devices * parts):
        near = sorted(set(plan.nearest_divisible(size, devices * parts)))
        over = [f"{devices} devices"] if devices > 1 or parts == 1 else []
        over += [f"train.accumulate={parts} parts"] if parts > 1 else []
        raise UsageError(
            f"train.batch_size={size} does not divide over {' and '.join(over)}; "
            f"try {' or '.join(map(str, near))}"
        )


def _check_memory(tree: Any, mesh: Mesh) -> None:
    """Refuses a model whose variables alone are more than a device holds.

    Raises:
        UsageError: names both sizes.
    """
    needed, limit = state.tree_bytes(tree), memory_bytes(mesh.devices.flat[0])
    if needed > limit:
        raise UsageError(
            f"the model's variables (with the optimizer's) take {needed:,} bytes on each device, "
            f"which has {limit:,}; make the model smaller"
        )


def build_plan(config: Config, examples: int) -> plan.Plan:
    """Steps and events of a run over `examples` training examples."""
    return plan.build(config.train, config.eval, config.checkpoint, config.report, examples)


def build_schedule(config: Config, run_plan: plan.Plan) -> optimizer.Schedule:
    """Finished updates to learning rate.

    Raises:
        UsageError: as for `optimizer.build_schedule`, or a warm-up that does not fit the plan.
    """
    span = optimizer.Span(
        run_plan.total_steps, run_plan.warmup_steps(config.schedule), run_plan.steps_per_epoch
    )
    return optimizer.build_schedule(config.schedule, config.optimizer.learning_rate, span)


def epochs_text(run: Run) -> str:
    """How many epochs a run has, as its config says it."""
    epochs = run.config.train.epochs or run.plan.epoch(run.plan.total_steps)
    return f"{epochs:.4g} epoch{'' if epochs == 1 else 's'}"


def describe(run: Run) -> dict[str, Any]:
    """What a checkpoint says of the run that made it, as JSON values."""
    return {
        "config": to_dict(run.config),
        "class_names": list(run.dataset.class_names),
        "image_shape": list(run.image_shape),
        "data": run.fingerprints,
        "versions": {name: importlib.metadata.version(name) for name in _VERSIONED},
    }
