"""Builds a run from its config."""

import dataclasses
import functools
from collections.abc import Set
from typing import Any

import jax
import numpy as np

from jaxtrain import augment, data, initial, losses, models, optimizer, plan, state
from jaxtrain.config import RATE_KEYS, SEED, Config, Variant, variants
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
from jaxtrain.replicas import Replicas, state_together
from jaxtrain.setup.checks import check_any_size, check_divides, check_memory, check_mode
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
    every = variants(config)
    if mesh is None:
        mesh = build_mesh(config.parallel.mesh, all_devices())
    check_mode(config, mesh)
    dataset = data.open_dataset(config.data, progress)
    run_plan = build_plan(config, dataset.train.size)
    image_shape = dataset.train.image_shape
    augmentation = _augment(config.data.augment, image_shape)
    check_divides(config.train, row_parts(mesh), augmentation.together)
    first = every[0].config
    schedule = build_schedule(first, run_plan)
    model = models.build(first.model, dataset.num_classes)
    variables = state.abstract_model(model, image_shape, dataset.num_classes)
    check_any_size(model, variables, dataset)
    of_params = parameter_shardings(config.parallel.rules, variables["params"], mesh)
    check_memory(with_shardings(variables["params"], of_params), mesh)
    frozen = models.frozen(first.model, model, variables)
    updates = optimizer.build(first.optimizer, variables["params"], frozen)
    convolves = state.has_convolution(model, variables, image_shape)
    fixed = Fixed(
        model=model,
        augment=augmentation,
        normalise=normalisation(
            config.data, image_shape, functools.partial(data.statistics, dataset.train)
        ),
        loss=_loss(first, dataset),
        optimizer=updates,
        schedule=schedule,
        report_steps=config.report.every_steps,
        accumulate=config.train.accumulate,
        unroll=convolves and on_cpu(mesh),
        ema_decay=first.train.ema_decay,
        axis=PMAP_AXIS if config.parallel.mode == "pmap" else None,
    )
    fixed_of = [
        _variant(fixed, variant, dataset, run_plan, variables=variables, frozen=frozen)
        for variant in every
    ]
    averages = first.train.ema_decay is not None
    creates = [
        functools.partial(
            state.create, one.model, one.optimizer, image_shape=image_shape, averages=averages
        )
        for one in fixed_of
    ]
    alone = jax.eval_shape(creates[0], seed=np.uint32(config.seed))
    state.weights(alone.model, config.eval.weights)  # there are such
    alone = with_shardings(alone, state_shardings(updates, alone, of_params, mesh))
    several = None
    if len(every) > 1:
        by_rate = every[0].key in (SEED, *RATE_KEYS)
        several = Replicas(
            fixed=tuple(fixed_of),
            differ_by_rate=by_rate,
            unroll=fixed.unroll or not by_rate,
            share_batch=every[0].is_of_sweep,
        )
    abstract = alone if several is None else state_together(alone, several.count)
    check_memory(abstract, mesh)
    return Run(
        config=config,
        variants=every,
        dataset=dataset,
        plan=run_plan,
        mesh=mesh,
        fixed=fixed_of[config.train.export_replica],
        replicas=several,
        creates=tuple(creates),
        abstract=abstract,
        alone=alone,
        steps_per_call=_steps_per_call(config, dataset.train, mesh, convolves=convolves),
        given=_given(config, dataset, variables, fixed, mesh),
    )


def _variant(
    fixed: Fixed,
    variant: Variant,
    dataset: data.Dataset,
    run_plan: plan.Plan,
    *,
    variables: dict[str, Any],
    frozen: Set[str],
) -> Fixed:
    """What stays the same for one model of a run.

    Args:
        fixed: that of the first.
        variant: the model.
        dataset: the data.
        run_plan: steps and events.
        variables: abstract, of any of them.
        frozen: names of the parameters that stay as they are.
    """
    if not variant.is_of_sweep:
        return fixed
    config = variant.config
    fixed = dataclasses.replace(fixed, schedule=build_schedule(config, run_plan))
    if variant.key in RATE_KEYS:
        return fixed
    return dataclasses.replace(
        fixed,
        model=models.build(config.model, dataset.num_classes),
        loss=_loss(config, dataset),
        optimizer=optimizer.build(config.optimizer, variables["params"], frozen),
        ema_decay=config.train.ema_decay,
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
