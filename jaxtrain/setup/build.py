"""Builds a run from its config."""

import dataclasses
import functools
from collections.abc import Set
from typing import Any

import jax
import numpy as np

from jaxtrain import augment, data, initial, losses, models, optimizer, plan, state
from jaxtrain.config import RATE_KEYS, SEED, Config, Variant, explained_sweep, variants
from jaxtrain.errors import UsageError
from jaxtrain.feed import is_resident
from jaxtrain.initial import Given
from jaxtrain.normalise import normalisation
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
from jaxtrain.replicas import Replicas, stacked_state
from jaxtrain.setup.checks import check_any_size, check_divides, check_memory, check_mode
from jaxtrain.setup.run import Run
from jaxtrain.setup.schedule import build_plan, build_schedule
from jaxtrain.state import TrainState
from jaxtrain.step import Fixed

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
    every = variants(config)
    if mesh is None:
        mesh = build_mesh(config.parallel.mesh, all_devices())
    check_mode(config, mesh)
    dataset = data.open_dataset(config.data, progress)
    samplers = tuple(
        data.Sampler(dataset.train.size, config.train.batch_size, variant.config.seed)
        for variant in every
    )
    run_plan = build_plan(config, dataset.train.size)
    with explained_sweep(config):
        first = _first(every[0].config, dataset, run_plan, mesh)
        fixed = tuple(_fixed(first, variant, dataset, run_plan) for variant in every)
    averages = every[0].config.train.ema_decay is not None
    creates = tuple(
        functools.partial(
            state.create,
            each.model,
            each.optimizer,
            image_shape=dataset.train.image_shape,
            averages=averages,
        )
        for each in fixed
    )
    one = jax.eval_shape(creates[0], seed=np.uint32(config.seed))
    state.weights(one.model, config.eval.weights)  # there are such
    one = with_shardings(one, state_shardings(fixed[0].optimizer, one, first.of_params, mesh))
    replicas = _replicas(every, fixed)
    abstract = one if replicas is None else stacked_state(one, replicas.count)
    check_memory(abstract, mesh)
    return Run(
        config=config,
        variants=every,
        dataset=dataset,
        samplers=samplers,
        plan=run_plan,
        mesh=mesh,
        fixed=fixed[config.train.export_replica],
        replicas=replicas,
        creates=creates,
        abstract=abstract,
        abstract_one=one,
        steps_per_call=_steps_per_call(config, dataset.train, mesh, convolves=first.convolves),
        given=_given(config, dataset, first.variables, fixed[0], mesh),
    )


@dataclasses.dataclass(frozen=True)
class _First:
    """The first replica of a run, and what it has in common with all others.

    Attributes:
        fixed: its own.
        variables: abstract.
        of_params: how the parameters lie.
        frozen: names of those that stay as they are.
        convolves: whether the model does.
    """

    fixed: Fixed
    variables: dict[str, Any]
    of_params: Any
    frozen: Set[str]
    convolves: bool


def _first(config: Config, dataset: data.Dataset, run_plan: plan.Plan, mesh: AnyMesh) -> _First:
    image_shape = dataset.train.image_shape
    augmentation = _augment(config.data.augment, image_shape)
    check_divides(config.train, row_parts(mesh), augmentation.together)
    schedule = build_schedule(config, run_plan)
    model = models.build(config.model, dataset.num_classes)
    variables = state.abstract_model(model, image_shape, dataset.num_classes)
    check_any_size(model, variables, dataset)
    of_params = parameter_shardings(config.parallel.rules, variables["params"], mesh)
    check_memory(with_shardings(variables["params"], of_params), mesh)
    frozen = models.frozen(config.model, model, variables)
    convolves = state.has_convolution(model, variables, image_shape)
    fixed = Fixed(
        model=model,
        augment=augmentation,
        normalise=normalisation(
            config.data, image_shape, functools.partial(data.statistics, dataset.train)
        ),
        loss=_loss(config, dataset),
        optimizer=optimizer.build(config.optimizer, variables["params"], frozen),
        schedule=schedule,
        report_steps=config.report.every_steps,
        accumulate=config.train.accumulate,
        unroll=convolves and on_cpu(mesh),
        ema_decay=config.train.ema_decay,
        axis=PMAP_AXIS if config.parallel.mode == "pmap" else None,
    )
    return _First(fixed, variables, of_params, frozen, convolves)


def _fixed(first: _First, variant: Variant, dataset: data.Dataset, run_plan: plan.Plan) -> Fixed:
    """What stays the same over the steps of one replica."""
    if not variant.is_of_sweep:
        return first.fixed
    config = variant.config
    fixed = dataclasses.replace(first.fixed, schedule=build_schedule(config, run_plan))
    if variant.key in RATE_KEYS:
        return fixed
    return dataclasses.replace(
        fixed,
        model=models.build(config.model, dataset.num_classes),
        loss=_loss(config, dataset),
        optimizer=optimizer.build(config.optimizer, first.variables["params"], first.frozen),
        ema_decay=config.train.ema_decay,
    )


def _replicas(every: tuple[Variant, ...], fixed: tuple[Fixed, ...]) -> Replicas | None:
    """The replicas; None: there is one model."""
    if len(every) == 1:
        return None
    alike = every[0].key in (SEED, *RATE_KEYS)
    return Replicas(
        fixed=fixed,
        alike=alike,
        unroll=fixed[0].unroll or not alike,
        share_batch=every[0].is_of_sweep,
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
