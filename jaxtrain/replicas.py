"""Several models of one run, trained by one program: `train.replicas` and `train.replicate`.

What a model has alone, the models of a run have together: every array of their state has an axis
more, its first, with a place for each; but for the step, which they have in common.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jaxtrain import step
from jaxtrain.data import Batch
from jaxtrain.state import TrainState
from jaxtrain.step import Fixed, StepMetrics

# The axis of the models in a state: the first of all its arrays but one.
_AXES = TrainState(
    step=None,  # type: ignore[arg-type]
    seed=0,  # type: ignore[arg-type]
    params=0,
    collections=0,
    opt_state=0,
    interval=0,  # type: ignore[arg-type]
    loss_scale=0,  # type: ignore[arg-type]
    skips=0,  # type: ignore[arg-type]
    ema=0,  # type: ignore[arg-type]
)


@dataclasses.dataclass(frozen=True)
class Replicas:
    """The models of a run.

    Attributes:
        fixed: what stays the same over all steps, of each.
        differ_by_rate: whether that is the same for all but for the schedule.
        unroll: whether they are compiled one after the other; else as one, over an axis more
            (`vmap`), which they can be only if they differ by their rates alone.
        share_batch: whether they all see the same batch.
    """

    fixed: tuple[Fixed, ...]
    differ_by_rate: bool
    unroll: bool
    share_batch: bool

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self.fixed)

    def rows(self, batch_size: int) -> int:
        """The rows of what one step of all reads, `batch_size` being the rows of one."""
        return batch_size if self.share_batch else batch_size * self.count

    def create(self, create: Sequence[Callable[..., TrainState]], seeds: jax.Array) -> TrainState:
        """The state before the first update. Pure.

        Args:
            create: `seed` to the state of one model, for each.
            seeds: uint32 `[models]`.
        """
        if self.differ_by_rate:
            created: TrainState = jax.vmap(create[0], out_axes=_AXES)(seeds)
            return created
        return _joined([one(seed) for one, seed in zip(create, seeds, strict=True)])

    def train_step(self, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        """One update of each model, as of `step.train_step` alone.

        Args:
            state: of all.
            batch: of all: rows `[batch, models]` in one axis, unless it is shared.

        Returns:
            The state after it, and the metrics of each.
        """
        batch, axes = self._parted(batch)
        if self.unroll:
            done = [
                self._one_step(k, state, batch if axes is None else _of_model(batch, k))
                for k in range(self.count)
            ]
            states, metrics = zip(*done, strict=True)
            return _joined(states), jax.tree.map(lambda *each: jnp.stack(each), *metrics)
        # A rate is what a model alone has, from the same numbers.
        rates = jnp.stack([jnp.asarray(fixed.schedule(state.step)) for fixed in self.fixed])

        def one(rate: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
            fixed = dataclasses.replace(self.fixed[0], schedule=lambda _: rate)
            return step.train_step(fixed, state, batch)

        mapped = jax.vmap(one, in_axes=(0, _AXES, axes), out_axes=(_AXES, 0))
        result: tuple[TrainState, StepMetrics] = mapped(rates, state, batch)
        return result

    def _one_step(self, k: int, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        """The step of model k; the optimizer's state is brought to its own optimizer's form."""
        fixed = self.fixed[k]
        before = dataclasses.replace(one_of(_without_step(state), k), step=state.step)
        own = jax.tree.structure(jax.eval_shape(fixed.optimizer.init, before.params))
        opt_state = jax.tree.unflatten(own, jax.tree.leaves(before.opt_state))
        after, metrics = step.train_step(
            fixed, dataclasses.replace(before, opt_state=opt_state), batch
        )
        form = jax.tree.structure(before.opt_state)
        opt_state = jax.tree.unflatten(form, jax.tree.leaves(after.opt_state))
        return dataclasses.replace(after, opt_state=opt_state), metrics

    def _parted(self, batch: Batch) -> tuple[Batch, Batch | None]:
        """The batch with the models in its second axis, and the axes to map over."""
        if self.share_batch:
            return batch, None
        rows = jax.tree.map(lambda x: x.reshape(-1, self.count, *x.shape[1:]), batch)
        row = rows.row[:, 0] // self.count
        return rows._replace(row=row), Batch(image=1, label=1, mask=1, row=None)


def of_each(
    function: Callable[[Any, Batch], dict[str, jax.Array]],
    variables: Any,
    batch: Batch,
    *,
    count: int,
    unroll: bool,
) -> dict[str, jax.Array]:
    """What a function gives for each of several models: `[rows, models, ...]` for `[rows, ...]`.

    Args:
        function: takes the variables of one model and a batch.
        variables: of all.
        batch: which all see.
        count: how many models there are.
        unroll: as of `Replicas`.
    """
    if unroll:
        each = [function(one_of(variables, k), batch) for k in range(count)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves, axis=1), *each)
    mapped = jax.vmap(lambda one: function(one, batch), out_axes=1)
    results: dict[str, jax.Array] = mapped(variables)
    return results


def one_of(tree: Any, k: int) -> Any:
    """The part of model k of a tree of arrays `[models, ...]`."""
    return jax.tree.map(lambda leaf: leaf[k], tree)


def together(tree: Any, count: int) -> Any:
    """The abstract arrays of several models, of those of one; each lies as one's does."""

    def several(leaf: Any) -> jax.ShapeDtypeStruct:
        sharding = leaf.sharding
        if sharding is not None:
            sharding = NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
        return jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype, sharding=sharding)

    return jax.tree.map(several, tree)


def state_together(state: TrainState, count: int) -> TrainState:
    """`together` of a whole state."""
    return dataclasses.replace(together(state, count), step=state.step)


def _without_step(state: TrainState) -> TrainState:
    return dataclasses.replace(state, step=None)  # type: ignore[arg-type]


def _of_model(batch: Batch, k: int) -> Batch:
    """The rows of model k, which all have the same numbers."""
    return Batch(batch.image[:, k], batch.label[:, k], batch.mask[:, k], batch.row)


def _joined(states: Sequence[TrainState]) -> TrainState:
    """The state of all models."""
    first, *others = map(_without_step, states)
    structure = jax.tree.structure(first)
    others = [jax.tree.unflatten(structure, jax.tree.leaves(other)) for other in others]
    joined: TrainState = jax.tree.map(lambda *leaves: jnp.stack(leaves), first, *others)
    return dataclasses.replace(joined, step=states[0].step)
