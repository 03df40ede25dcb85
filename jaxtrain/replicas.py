"""The replicas of a run, trained by one program: `train.replicas` and `train.replicate`.

Their states are stacked: every array has an axis more than that of one, its first, with a place for
each replica; but for the step, which they have in common.
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

# The axis of the replicas in a stacked state.
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
    """The replicas of a run, two or more.

    Attributes:
        fixed: what stays the same over all steps, of each.
        alike: whether that is the same for all, but for the schedule.
        unroll: whether they are compiled one after the other; else as one, over an axis more
            (`vmap`), which they can be only if they are alike.
        share_batch: whether they all see the same batch.
    """

    fixed: tuple[Fixed, ...]
    alike: bool
    unroll: bool
    share_batch: bool

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self.fixed)

    def rows(self, batch_size: int) -> int:
        """The rows that one step of all reads, `batch_size` being those of one replica."""
        return batch_size if self.share_batch else batch_size * self.count

    def create(self, create: Sequence[Callable[..., TrainState]], seeds: jax.Array) -> TrainState:
        """The state before the first update. Pure.

        Args:
            create: `seed` to the state of one, for each.
            seeds: uint32 `[replicas]`.
        """
        if self.alike:
            created: TrainState = jax.vmap(create[0], out_axes=_AXES)(seeds)
            return created
        return _stack([one(seed) for one, seed in zip(create, seeds, strict=True)])

    def train_step(self, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        """One update of each replica, as of `step.train_step`.

        Args:
            state: stacked.
            batch: the rows of all, as `data.Interleaved` has them, unless they are shared.

        Returns:
            The state after it and the metrics, both stacked.
        """
        batch, axes = self._parted(batch)
        if self.unroll:
            done = [
                self._one_step(k, state, batch if axes is None else _of_replica(batch, k))
                for k in range(self.count)
            ]
            states, metrics = zip(*done, strict=True)
            return _stack(states), jax.tree.map(lambda *each: jnp.stack(each), *metrics)
        # Computed as for one: traced numbers inside a schedule would be rounded otherwise.
        rates = jnp.stack([jnp.asarray(fixed.schedule(state.step)) for fixed in self.fixed])

        def one(rate: jax.Array, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
            fixed = dataclasses.replace(self.fixed[0], schedule=lambda _: rate)
            return step.train_step(fixed, state, batch)

        mapped = jax.vmap(one, in_axes=(0, _AXES, axes), out_axes=(_AXES, 0))
        result: tuple[TrainState, StepMetrics] = mapped(rates, state, batch)
        return result

    def _one_step(self, k: int, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        """The step of replica k.

        The state of its own optimizer may be another tree around the same arrays: one without
        weight decay has one part less, which holds no array.
        """
        fixed = self.fixed[k]
        before = dataclasses.replace(select(_without_step(state), k), step=state.step)
        own = jax.tree.structure(jax.eval_shape(fixed.optimizer.init, before.params))
        opt_state = jax.tree.unflatten(own, jax.tree.leaves(before.opt_state))
        after, metrics = step.train_step(
            fixed, dataclasses.replace(before, opt_state=opt_state), batch
        )
        form = jax.tree.structure(before.opt_state)
        opt_state = jax.tree.unflatten(form, jax.tree.leaves(after.opt_state))
        return dataclasses.replace(after, opt_state=opt_state), metrics

    def _parted(self, batch: Batch) -> tuple[Batch, Batch | None]:
        """The batch with the replicas in its second axis, and the axes to map over."""
        if self.share_batch:
            return batch, None
        rows = jax.tree.map(lambda x: x.reshape(-1, self.count, *x.shape[1:]), batch)
        row = rows.row[:, 0] // self.count
        return rows._replace(row=row), Batch(image=1, label=1, mask=1, row=None)


def map_replicas(
    function: Callable[[Any, Batch], dict[str, jax.Array]],
    variables: Any,
    batch: Batch,
    *,
    count: int,
    unroll: bool,
) -> dict[str, jax.Array]:
    """What a function gives for each replica: `[rows, replicas, ...]` for `[rows, ...]`.

    Args:
        function: takes the variables of one replica and a batch.
        variables: stacked.
        batch: which all see.
        count: how many replicas there are.
        unroll: whether they are compiled one after the other, as convolutions on CPU devices are.
    """
    if unroll:
        each = [function(select(variables, k), batch) for k in range(count)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves, axis=1), *each)
    mapped = jax.vmap(lambda one: function(one, batch), out_axes=1)
    results: dict[str, jax.Array] = mapped(variables)
    return results


def select(tree: Any, k: int) -> Any:
    """Replica k of a stacked tree, all of whose arrays are `[replicas, ...]`."""
    return jax.tree.map(lambda leaf: leaf[k], tree)


def stacked(tree: Any, count: int) -> Any:
    """The abstract arrays of several replicas, of those of one, which lie likewise."""

    def several(leaf: Any) -> jax.ShapeDtypeStruct:
        sharding = leaf.sharding
        if sharding is not None:
            sharding = NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
        return jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype, sharding=sharding)

    return jax.tree.map(several, tree)


def stacked_state(state: TrainState, count: int) -> TrainState:
    """`stacked` of a state, whose step stays as it is."""
    return dataclasses.replace(stacked(state, count), step=state.step)


def _without_step(state: TrainState) -> TrainState:
    return dataclasses.replace(state, step=None)  # type: ignore[arg-type]


def _of_replica(batch: Batch, k: int) -> Batch:
    """The rows of replica k; their numbers are the same for all."""
    return Batch(batch.image[:, k], batch.label[:, k], batch.mask[:, k], batch.row)


def _stack(states: Sequence[TrainState]) -> TrainState:
    """The stacked state of several."""
    first, *others = map(_without_step, states)
    structure = jax.tree.structure(first)
    others = [jax.tree.unflatten(structure, jax.tree.leaves(other)) for other in others]
    joined: TrainState = jax.tree.map(lambda *leaves: jnp.stack(leaves), first, *others)
    return dataclasses.replace(joined, step=states[0].step)
