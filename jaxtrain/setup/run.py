"""A checked run."""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh

from jaxtrain import data, plan
from jaxtrain.config import Config
from jaxtrain.initial import Given
from jaxtrain.parallel.compile import one_call
from jaxtrain.parallel.mesh import AnyMesh, shardings
from jaxtrain.state import TrainState
from jaxtrain.step import Fixed


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


def epochs_text(run: Run) -> str:
    """How many epochs a run has, as its config says it."""
    epochs = run.config.train.epochs or run.plan.epoch(run.plan.total_steps)
    return f"{epochs:.4g} epoch{'' if epochs == 1 else 's'}"
