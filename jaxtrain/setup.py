"""Config to Run: everything that is decided before the first step, and nothing written yet."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxtrain import augment, data, initial, losses, models, optimizer, plan, state
from jaxtrain.config import Config
from jaxtrain.config.schema import TrainConfig
from jaxtrain.errors import UsageError
from jaxtrain.feed import is_resident
from jaxtrain.initial import Given
from jaxtrain.parallel.compile import PMAP_AXIS, one_call
from jaxtrain.parallel.layout import parameter_shardings
from jaxtrain.parallel.mesh import (
    AnyMesh,
    all_devices,
    build_mesh,
    bytes_per_device,
    memory_bytes,
    on_cpu,
    replicated,
    row_parts,
    shardings,
    with_shardings,
)
from jaxtrain.state import TrainState
from jaxtrain.step import Fixed, normalisation

# Saves a tenth of the time of a small MLP's step.
_STEPS_PER_CALL = 10


@dataclasses.dataclass(frozen=True)
class Run:
    """A checked run.

    Attributes:
        config: the resolved config.
        dataset: the training and evaluation splits and the classes.
        sampler: step to example indices of the training split.
        plan: steps and events.
        mesh: the devices; abstract ones if it is only checked.
        fixed: model, augmentation, loss, optimizer and schedule.
        create: `seed` to the state before the first update; pure.
        abstract: the state's shapes, dtypes and shardings.
        steps_per_call: the most updates in one call of the compiled step.
        given: the weights of `model.init_from`, if that is set; a run that goes on needs none.
    """

    config: Config
    dataset: data.Dataset
    sampler: data.Sampler
    plan: plan.Plan
    mesh: AnyMesh
    fixed: Fixed
    create: Callable[..., TrainState]
    abstract: TrainState
    steps_per_call: int
    given: Given | None = None

    def check_given(self) -> tuple[str, ...]:
        """Looks whether a new run has weights to start with.

        Returns:
            What a person should know of them, a line each.

        Raises:
            UsageError: those of `model.init_from` are not there or do not fit.
        """
        return () if self.given is None else self.given.check()

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return self.dataset.train.image_shape

    @property
    def devices(self) -> Mesh:
        """The mesh of a run that is to be trained here."""
        assert isinstance(self.mesh, Mesh)
        return self.mesh

    @property
    def fingerprints(self) -> dict[str, str]:
        """Checksums of the splits by role."""
        return {"train": self.dataset.train.fingerprint, "eval": self.dataset.eval.fingerprint}

    def create_state(self) -> TrainState:
        """The state before the first update, on the devices.

        Raises:
            UsageError: as for `check_given`.
        """
        given = None if self.given is None else self.given.take()
        compiled = jax.jit(
            self.create,
            out_shardings=shardings(self.abstract),
            compiler_options=one_call(self.mesh),
        )
        return compiled(seed=np.uint32(self.config.seed), given=given)


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
    _check_mode(config, mesh)
    dataset = data.open_dataset(config.data, progress)
    sampler = data.Sampler(dataset.train.size, config.train.batch_size, config.seed)
    run_plan = build_plan(config, dataset.train.size)
    image_shape = dataset.train.image_shape
    augmentation = _augment(config.data.augment, image_shape)
    _check_divides(config.train, row_parts(mesh), augmentation.together)
    schedule = build_schedule(config, run_plan)
    model = models.build(config.model, dataset.num_classes)
    variables = state.abstract_model(model, image_shape, dataset.num_classes)
    of_params = parameter_shardings(config.parallel.rules, variables["params"], mesh)
    _check_memory(with_shardings(variables["params"], of_params), mesh)
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
    _check_memory(abstract, mesh)
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


def _check_mode(config: Config, mesh: AnyMesh) -> None:
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


def _check_divides(config: TrainConfig, devices: int, together: int) -> None:
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


def _check_memory(tree: Any, mesh: AnyMesh) -> None:
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
