"""One update and one evaluation batch, as pure functions."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxtrain import ema, keys
from jaxtrain.accumulation import Outputs, accumulated
from jaxtrain.augment import Augment, partners
from jaxtrain.data import Batch
from jaxtrain.losses import Loss, main_label, soft_target
from jaxtrain.models import Model
from jaxtrain.normalise import Normalise, unit_interval
from jaxtrain.optimizer import Optimizer, Schedule
from jaxtrain.skips import Skips
from jaxtrain.state import TrainState, all_finite
from jaxtrain.tasks import Interval, Task


@dataclasses.dataclass(frozen=True)
class Fixed:
    """What stays the same over all steps.

    Attributes:
        model: the network.
        augment: random changes of training images, and how they are mixed.
        normalise: what the network sees of an image.
        loss: the training loss of each example, for its label or for shares of several.
        optimizer: gradients to new parameters.
        schedule: finished updates to learning rate.
        report_steps: updates in a report interval; 0 when only the last step reports.
        accumulate: parts of a batch that are computed one after the other.
        unroll: whether those are compiled without a loop.
        ema_decay: decay of the average of the weights; None: there is none.
        axis: the axis of the devices if the step runs on each of them for its own rows (under
            `pmap`), and so has to sum over it; None if it sees the whole batch.
    """

    model: Model
    augment: Augment
    normalise: Normalise
    loss: Loss
    optimizer: Optimizer
    schedule: Schedule
    report_steps: int
    accumulate: int
    unroll: bool
    ema_decay: float | None = None
    axis: str | None = None

    def total(self, tree: Any) -> Any:
        """The sums over the whole batch, of sums over the rows that this program sees."""
        return tree if self.axis is None else jax.lax.psum(tree, self.axis)


class StepMetrics(NamedTuple):
    """What a step reports.

    Attributes:
        interval: its sums so far.
        learning_rate: float32 `[]`, of this update.
        skips: how many updates were skipped; None where none ever is.
    """

    interval: Interval
    learning_rate: jax.Array
    skips: Skips | None


class Resident(NamedTuple):
    """A whole split on the device: all of `Split.images`, and label int32 `[N]`."""

    image: Any
    label: Any


def gather(resident: Resident, index: jax.Array, first_row: jax.Array | int = 0) -> Batch:
    """The batch of int32 `[batch]` example indices; -1 makes a masked row.

    Args:
        resident: the split.
        index: of a whole batch, or of some of its rows.
        first_row: the first of them.
    """
    mask = index >= 0
    safe = jnp.where(mask, index, 0)
    row = jnp.arange(index.shape[0], dtype=jnp.int32) + first_row
    return Batch(image=resident.image[safe], label=resident.label[safe], mask=mask, row=row)


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
    rate = jnp.asarray(fixed.schedule(state.step), jnp.float32)
    examples = jnp.maximum(fixed.total(batch.mask.sum(dtype=jnp.float32)), 1.0)

    def loss_fn(trained: Any, part: Batch) -> tuple[jax.Array, Outputs]:
        augment_key = keys.step_key(state.seed, step, "augment")
        image = fixed.augment(augment_key, unit_interval(part.image), part.row)
        image, share = fixed.augment.mix(augment_key, image, part.row, part.mask)
        logits, collections = fixed.model.apply(
            fixed.optimizer.whole(trained, state.params),
            state.collections,
            fixed.normalise(image),
            row=part.row,
            key=keys.step_key(state.seed, step, "dropout"),
            mask=part.mask,
            axis=fixed.axis,
        )
        target = part.label
        if share is not None:
            target = soft_target(target, partners(target), share, logits.shape[-1])
        loss = fixed.loss(logits, target)
        mean = jnp.where(part.mask, loss, 0.0).sum() / examples
        scaled = mean if state.loss_scale is None else mean * state.loss_scale.scale
        return scaled, Outputs(loss, logits, main_label(target), collections)

    gradients, outputs = accumulated(
        jax.grad(loss_fn, has_aux=True),
        fixed.optimizer.trained(state.params),
        state.collections,
        batch,
        parts=fixed.accumulate,
        together=fixed.augment.together,
        unroll=fixed.unroll,
        total=fixed.total,
    )
    interval = Interval.from_model_output(
        loss=outputs.loss,
        logits=outputs.logits,
        label=outputs.label,
        mask=batch.mask,
        step=step,
        axis=fixed.axis,
    )
    loss_scale = state.loss_scale
    if loss_scale is not None:
        gradients, loss_scale, hopeless = loss_scale.unscaled(gradients)
        interval = interval.replace(bad_step=jnp.where(hopeless, step, interval.bad_step))
    params, opt_state = fixed.optimizer.update(gradients, state.opt_state, state.params, rate)
    learned = {"params": params, "collections": outputs.collections, "opt_state": opt_state}
    if state.ema is not None:
        assert fixed.ema_decay is not None, "the state was created for it"
        new = {name: learned[name] for name in ("params", "collections")}
        learned["ema"] = ema.after(state.ema, new, fixed.ema_decay, step)
    before = {name: getattr(state, name) for name in learned}
    if loss_scale is not None:
        learned = loss_scale.unless_skipped(learned, before)
    skips = state.skips
    if skips is not None:
        bad = (interval.bad_step > 0) | ~all_finite(gradients)
        skips = skips.after(bad, first=_is_first(fixed, state))
        learned = skips.unless_skipped(learned, before)
        interval = _without_skipped(interval, skips, fixed.optimizer.skip_nonfinite, step)
    interval = _continued(fixed, state).merge(interval)
    new_state = TrainState(
        step=step,
        seed=state.seed,
        interval=interval,
        loss_scale=loss_scale,
        skips=skips,
        **learned,
    )
    return new_state, StepMetrics(interval, rate, skips)


def _is_first(fixed: Fixed, state: TrainState) -> jax.Array | bool:
    """Whether the next update is the first of a report interval."""
    return state.step % fixed.report_steps == 0 if fixed.report_steps else False


def _continued(fixed: Fixed, state: TrainState) -> Interval:
    """The interval to add to: a new one after a report step."""
    if not fixed.report_steps:
        return state.interval
    first = _is_first(fixed, state)
    return jax.tree.map(lambda x: jnp.where(first, jnp.zeros_like(x), x), state.interval)


def _without_skipped(interval: Interval, skips: Skips, limit: int, step: jax.Array) -> Interval:
    """One step's part of the interval: nothing if it was skipped, but after `limit` a bad step."""
    interval = skips.unless_skipped(interval, jax.tree.map(jnp.zeros_like, interval))
    return interval.replace(bad_step=jnp.where(skips.in_a_row > limit, step, 0))


def eval_step(
    model: Model,
    normalise: Normalise,
    task: Task,
    variables: dict[str, Any],
    batch: Batch,
    *,
    flip_average: bool = False,
) -> dict[str, jax.Array]:
    """Per-example results of one batch.

    Args:
        model: the network.
        normalise: what it sees of an image.
        task: what is kept of its logits.
        variables: `TrainState.model`, parameters and collections.
        batch: the global batch.
        flip_average: whether logits are the mean of those of an image and of its mirror image.

    Returns:
        `Task.results` and the batch's `mask`, each `[batch]`.
    """
    logits = eval_logits(model, normalise, variables, batch, flip_average=flip_average)
    return {**task.results(logits, batch.label), "mask": batch.mask}


def eval_logits(
    model: Model,
    normalise: Normalise,
    variables: dict[str, Any],
    batch: Batch,
    *,
    flip_average: bool,
) -> jax.Array:
    """Logits float32 `[batch, classes]`; the arguments are those of `eval_step`."""

    def apply(image: jax.Array) -> jax.Array:
        logits, _ = model.apply(
            variables["params"],
            variables["collections"],
            image,
            row=batch.row,
            key=None,
            mask=batch.mask,
        )
        return logits

    image = normalise(batch.image)
    logits = apply(image)
    if flip_average:
        logits = (logits + apply(jnp.flip(image, axis=2))) / 2
    return logits
