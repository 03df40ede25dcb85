"""Builds a run from its config."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from jaxtrain import augment, data, initial, losses, models, optimizer, state
from jaxtrain.config import Config
from jaxtrain.errors import UsageError
from jaxtrain.feed import is_resident
from jaxtrain.initial import Given
from jaxtrain.parallel.compile import PMAP_AXIS
from jaxtrain.parallel.layout import parameter_shardings
from jaxtrain.parallel.mesh import (
    AnyMesh,
    all_devices,
    build_mesh,
    on_cpu,
    replicated,
    row_parts,
    with_shardings,
)
from jaxtrain.setup.checks import check_divides, check_memory, check_mode
from jaxtrain.setup.run import Run
from jaxtrain.setup.schedule import build_plan, build_schedule
from jaxtrain.state import TrainState
from jaxtrain.step import Fixed, normalisation

# Saves a tenth of the time of a small MLP's step.
_STEPS_PER_CALL = 10


def build(
    config: Config, mesh: AnyMesh | None = None, progress: data.Progress = data.silent
) -> Run:
    """Checks a config against its data, its model and the devices.

    Args:
        config: the resolved config.
        mesh: the devices to check for; None: those of all processes, as `parallel.mesh` says.
        progress: told how far it is where the data takes long; called from threads.

    Raises:
        UsageError: an unknown name, a key that nothing reads, missing or bad data, a mesh that
            does not fit the devices, a batch that does not divide over them, a warm-up that does
            not fit, or a model that does not take the images or give the classes.
    """
    if mesh is None:
        mesh = build_mesh(config.parallel.mesh, all_devices())
    check_mode(config, mesh)
    dataset = data.open_dataset(config.data, progress)
    sampler = data.Sampler(dataset.train.size, config.train.batch_size, config.seed)
    run_plan = build_plan(config, dataset.train.size)
    image_shape = dataset.train.image_shape
    augmentation = _augment(config.data.augment, image_shape)
    check_divides(config.train, row_parts(mesh), augmentation.together)
    schedule = build_schedule(config, run_plan)
    model = models.build(config.model, dataset.num_classes)
    variables = state.abstract_model(model, image_shape, dataset.num_classes)
    of_params = parameter_shardings(config.parallel.rules, variables["params"], mesh)
    check_memory(with_shardings(variables["params"], of_params), mesh)
    frozen = models.frozen(config.model, model, variables)
    updates = optimizer.build(config.optimizer, variables["params"], frozen)
    convolves = state.has_convolution(model, variables, image_shape)
    fixed = Fixed(
        model=model,
        augment=augmentation,
        normalise=normalisation(
            config.data, image_shape, functools.partial(data.statistics, dataset.train)
        ),
        loss=_loss(config, dataset),
        optimizer=updates,
        schedule=schedule,
        report_steps=config.report.every_steps,
        accumulate=config.train.accumulate,
        unroll=convolves and on_cpu(mesh),
        ema_decay=config.train.ema_decay,
        axis=PMAP_AXIS if config.parallel.mode == "pmap" else None,
    )
    averages = config.train.ema_decay is not None
    create = functools.partial(
        state.create, model, updates, image_shape=image_shape, averages=averages
    )
    abstract = jax.eval_shape(create, seed=np.uint32(config.seed))
    state.weights(abstract.model, config.eval.weights)  # there are such
    lies = state_shardings(updates, abstract, of_params, mesh)
    abstract = with_shardings(abstract, lies)
    check_memory(abstract, mesh)
    return Run(
        config=config,
        dataset=dataset,
        sampler=sampler,
        plan=run_plan,
        mesh=mesh,
        fixed=fixed,
        create=create,
        abstract=abstract,
        steps_per_call=_steps_per_call(config, dataset.train, mesh, convolves=convolves),
        given=_given(config, dataset, variables, fixed, mesh),
    )


def state_shardings(
    updates: optimizer.Optimizer,
    abstract: TrainState,
    of_params: Any,
    mesh: AnyMesh,
) -> TrainState:
    """How the state lies: what belongs to a parameter as that does, all else on every device.

    Args:
        updates: the optimizer.
        abstract: the state.
        of_params: how its parameters lie, by `parameter_shardings`.
        mesh: the devices.
    """
    everywhere = replicated(mesh)
    whole: TrainState = jax.tree.map(lambda _: everywhere, abstract)
    of_optimizer = optimizer.like_parameters(updates, abstract.opt_state, of_params, everywhere)
    lies = dataclasses.replace(whole, params=of_params, opt_state=of_optimizer)
    if whole.ema is None:
        return lies
    return dataclasses.replace(lies, ema={**whole.ema, "params": of_params})


def _given(
    config: Config, dataset: data.Dataset, variables: dict[str, Any], fixed: Fixed, mesh: AnyMesh
) -> Given | None:
    init_from = config.model.init_from
    if init_from is None:
        return None
    return Given(
        functools.partial(
            initial.load, init_from, variables, mesh, dataset.class_names, fixed.normalise
        )
    )


def _augment(text: str, image_shape: tuple[int, ...]) -> augment.Augment:
    made = augment.build(text)
    made.check(image_shape)
    return made


def _loss(config: Config, dataset: data.Dataset) -> losses.Loss:
    weights = losses.parse_class_weights(
        config.data.class_weights, dataset.train.labels, dataset.num_classes
    )
    train = config.train
    return losses.training_loss(train.loss, train.label_smoothing, weights, train.binary_threshold)


def _steps_per_call(config: Config, split: data.Split, mesh: AnyMesh, *, convolves: bool) -> int:
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
