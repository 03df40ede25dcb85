"""A checked run."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxtrain import data, plan
from jaxtrain.config import Config, Variant
from jaxtrain.errors import some
from jaxtrain.initial import Given
from jaxtrain.parallel.compile import one_call
from jaxtrain.parallel.mesh import AnyMesh, shardings
from jaxtrain.replicas import Replicas, select
from jaxtrain.state import TrainState
from jaxtrain.step import Fixed, StepMetrics, train_step


@dataclasses.dataclass(frozen=True)
class Run:
    """A checked run.

    Attributes:
        config: the resolved config.
        variants: its replicas, one or more.
        dataset: the training and evaluation splits and the classes.
        samplers: step to indices of the training split, of each replica.
        plan: steps and events.
        mesh: the devices; abstract ones if it is only checked.
        fixed: model, augmentation, loss, optimizer and schedule, of the run's model.
        replicas: None: there is one model.
        creates: `seed` to the state before the first update, of each replica; pure.
        abstract: shapes, dtypes and shardings of the state, which is stacked if there are replicas.
        abstract_one: those of one replica.
        steps_per_call: the most updates in one call of the compiled step.
        given: the weights of `model.init_from`, if that is set; a run that goes on needs none.
    """

    config: Config
    variants: tuple[Variant, ...]
    dataset: data.Dataset
    samplers: tuple[data.Sampler, ...]
    plan: plan.Plan
    mesh: AnyMesh
    fixed: Fixed
    replicas: Replicas | None
    creates: tuple[Callable[..., TrainState], ...]
    abstract: TrainState
    abstract_one: TrainState
    steps_per_call: int
    given: Given | None = None

    def check_given(self) -> tuple[str, ...]:
        """Looks whether a new run has weights to start with.

        Returns:
            What a person should know of them, a line each.

        Raises:
            UsageError: those of `model.init_from` are not there or do not fit.
        """
        if self.given is not None:
            return self.given.check()
        freeze = self.config.model.freeze
        if freeze is None:
            return ()
        note = f"model.freeze={freeze} keeps them random: set model.init_from to keep trained ones"
        return (note,)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape of one training example."""
        return self.dataset.train.image_shape

    @property
    def devices(self) -> Mesh:
        """The mesh of a run that is to be trained here."""
        assert isinstance(self.mesh, Mesh)
        return self.mesh

    @property
    def variant(self) -> Variant:
        """What the run's model is."""
        return self.variants[self.config.train.export_replica]

    @property
    def is_sweep(self) -> bool:
        """Whether its replicas differ in a hyperparameter."""
        return self.variant.is_of_sweep

    @property
    def differences(self) -> list[dict[str, int | float]]:
        """What each replica differs in; empty: there is one model."""
        return [variant.difference for variant in self.variants] if self.replicas else []

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
        seeds = [np.uint32(variant.config.seed) for variant in self.variants]

        def create(seeds: Any, given: Any) -> TrainState:
            each = [functools.partial(one, given=given) for one in self.creates]
            return each[0](seeds[0]) if self.replicas is None else self.replicas.create(each, seeds)

        compiled = jax.jit(
            create,
            out_shardings=shardings(self.abstract),
            compiler_options=one_call(self.mesh),
        )
        return compiled(np.stack(seeds), given)

    @property
    def step(self) -> Callable[[TrainState, data.Batch], tuple[TrainState, StepMetrics]]:
        """The pure step, of all replicas."""
        if self.replicas is None:
            return functools.partial(train_step, self.fixed)
        return self.replicas.train_step

    @property
    def rows(self) -> int:
        """Rows of the batch that a step takes: of each replica its own, where they differ."""
        size = self.config.train.batch_size
        return size if self.replicas is None else self.replicas.rows(size)

    @property
    def sampler(self) -> data.Sampler:
        """Step to indices of the training split, for the run's model."""
        return self.samplers[self.config.train.export_replica]

    def batches(self) -> data.IndexBatches:
        """The indices of the batches that the steps take."""
        steps = self.plan.total_steps
        if self.replicas is None or self.replicas.share_batch:
            return self.sampler.batches(steps)
        return data.Interleaved([sampler.batches(steps) for sampler in self.samplers])

    def unstacked(self, tree: Any) -> list[Any]:
        """The parts of all replicas of what a step gives."""
        if self.replicas is None:
            return [tree]
        return [select(tree, k) for k in range(self.replicas.count)]


def replicas_text(run: Run) -> str:
    """What the replicas of a run are, in a line."""
    assert run.replicas is not None, "there are some"
    how = "one after the other" if run.replicas.unroll else "vmapped"
    values = some([str(variant.value) for variant in run.variants])
    return f"{run.replicas.count} ({how}): {run.variant.key} {values}"


def epochs_text(run: Run) -> str:
    """How many epochs a run has, as its config says it."""
    epochs = run.config.train.epochs or run.plan.epoch(run.plan.total_steps)
    return f"{epochs:.4g} epoch{'' if epochs == 1 else 's'}"
