"""One update and one evaluation batch, as pure functions."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxtrain import keys
from jaxtrain.data import Batch
from jaxtrain.models import Model
from jaxtrain.optimizer import Schedule
from jaxtrain.state import TrainState
from jaxtrain.tasks import Interval, Task


@dataclasses.dataclass(frozen=True)
class Fixed:
    """What stays the same over all steps.

    Attributes:
        model: the network.
        task: its loss and results.
        optimizer: gradients to updates.
        schedule: finished updates to learning rate, the one inside `optimizer`.
        report_steps: updates in a report interval; 0 when only the last step reports.
    """

    model: Model
    task: Task
    optimizer: optax.GradientTransformation
    schedule: Schedule
    report_steps: int


class StepMetrics(NamedTuple):
    """What a step reports: the interval's sums so far, and the rate of this update."""

    interval: Interval
    learning_rate: jax.Array


class Resident(NamedTuple):
    """A whole split on the device: image uint8 `[N, H, W, C]`, label int32 `[N]`."""

    image: Any
    label: Any


def gather(resident: Resident, index: jax.Array) -> Batch:
    """The batch of int32 `[batch]` example indices; -1 makes a masked row."""
    mask = index >= 0
    safe = jnp.where(mask, index, 0)
    row = jnp.arange(index.shape[0], dtype=jnp.int32)
    return Batch(image=resident.image[safe], label=resident.label[safe], mask=mask, row=row)


def normalise(image: jax.Array) -> jax.Array:
    """uint8 `[batch, H, W, C]` to float32 in 0..1; floats stay as they are."""
    return image.astype(jnp.float32) / 255.0 if image.dtype == jnp.uint8 else image


def train_step(fixed: Fixed, state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
    """One update.

    Args:
        fixed: what stays the same.
        state: the state after `state.step` updates.
        batch: the global batch; masked rows change nothing.

    Returns:
        The state after one more update, and the metrics of the report interval up to and
        including it.
    """
    step = state.step + 1
    key = keys.step_key(state.seed, step, "dropout")
    image = normalise(batch.image)

    def loss_fn(params: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array, Any]]:
        logits, collections = fixed.model.apply(
            params, state.collections, image, row=batch.row, key=key
        )
        loss = fixed.task.loss(logits, batch.label)
        mean = jnp.where(batch.mask, loss, 0.0).sum() / jnp.maximum(
            batch.mask.sum(dtype=jnp.float32), 1.0
        )
        return mean, (loss, logits, collections)

    grad_fn = jax.grad(loss_fn, has_aux=True)
    gradients, (loss, logits, collections) = grad_fn(state.params)
    updates, opt_state = fixed.optimizer.update(gradients, state.opt_state, state.params)
    interval = _continued(fixed, state).merge(
        Interval.from_model_output(
            loss=loss, logits=logits, label=batch.label, mask=batch.mask, step=step
        )
    )
    new_state = TrainState(
        step=step,
        seed=state.seed,
        params=optax.apply_updates(state.params, updates),
        collections=collections,
        opt_state=opt_state,
        interval=interval,
    )
    return new_state, StepMetrics(interval, jnp.asarray(fixed.schedule(state.step), jnp.float32))


def repeated(
    step: Callable[[jax.Array, Any], tuple[Any, Any]], state: Any, count: jax.Array
) -> tuple[Any, Any]:
    """What `step(i, state)` gives after `count` turns, i from 0.

    The count is not known to the compiler, so that a step is computed in the same way in a run of
    any length.

    Returns:
        The last state, and the last metrics (zeros if `count` is 0).
    """
    step = jax.jit(step)  # traced once
    _, metrics = jax.eval_shape(step, 0, state)
    first = state, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), metrics)
    last: tuple[Any, Any] = jax.lax.fori_loop(0, count, lambda i, kept: step(i, kept[0]), first)
    return last


def _continued(fixed: Fixed, state: TrainState) -> Interval:
    """The interval to add to: a new one after a report step."""
    if not fixed.report_steps:
        return state.interval
    first = state.step % fixed.report_steps == 0
    return jax.tree.map(lambda x: jnp.where(first, jnp.zeros_like(x), x), state.interval)


def eval_step(
    model: Model, task: Task, variables: dict[str, Any], batch: Batch
) -> dict[str, jax.Array]:
    """Per-example results of one batch.

    Args:
        model: the network.
        task: what is kept of its logits.
        variables: `TrainState.model`, parameters and collections.
        batch: the global batch.

    Returns:
        `Task.results` and the batch's `mask`, each `[batch]`.
    """
    logits, _ = model.apply(
        variables["params"],
        variables["collections"],
        normalise(batch.image),
        row=batch.row,
        key=None,
    )
    return {**task.results(logits, batch.label), "mask": batch.mask}
