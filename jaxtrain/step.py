"""One update and one evaluation batch, as pure functions."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxtrain import ema, keys
from jaxtrain.augment import Augment, partners
from jaxtrain.config.schema import DataConfig
from jaxtrain.data import Batch, Statistics
from jaxtrain.data.examples import is_image, shape_text
from jaxtrain.errors import UsageError
from jaxtrain.losses import Loss, main_label, soft_target
from jaxtrain.models import Model
from jaxtrain.optimizer import Optimizer, Schedule
from jaxtrain.parallel.loop import summed
from jaxtrain.skips import Skips
from jaxtrain.state import TrainState, all_finite
from jaxtrain.tasks import Interval, Task


@dataclasses.dataclass(frozen=True)
class Normalise:
    """Examples as the network takes them: `(x - mean) / std` of images in 0..1, or of features.

    Attributes:
        mean: one number, or one a channel or feature.
        std: likewise.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, image: jax.Array) -> jax.Array:
        """Float32, of the same shape.

        Args:
            image: `[batch, H, W, C]`, uint8 or floats that are in 0..1 already; or features
                float32 `[batch, D]`.
        """
        image = unit_interval(image)
        last = (1,) * (image.ndim - 1) + (-1,)
        if self.mean != (0.0,):
            image -= jnp.asarray(self.mean, jnp.float32).reshape(last)
        if self.std != (1.0,):
            image /= jnp.asarray(self.std, jnp.float32).reshape(last)
        return image


def normalisation(
    config: DataConfig, image_shape: tuple[int, ...], known: Callable[[], Statistics]
) -> Normalise:
    """`data.mean` and `data.std`, or with `data.standardize` the statistics of the features.

    Args:
        config: the `data` section.
        image_shape: of one example.
        known: gives the statistics of the training examples; called if they are needed.

    Raises:
        UsageError: neither one number nor one a channel or feature; or images, or numbers beside
            the statistics, with `data.standardize`.
    """
    has_images = is_image(image_shape)
    numbers, each = (config.mean, config.std), "channel" if has_images else "feature"
    for name, values in zip(("mean", "std"), numbers, strict=True):
        if len(values) not in (1, image_shape[-1]):
            raise UsageError(
                f"data.{name}={values} holds {len(values)} numbers, but "
                f"{'images' if has_images else 'examples'} have {image_shape[-1]} {each}s; give "
                f"one number, or one a {each}"
            )
    if not config.standardize:
        return Normalise(*numbers)
    if has_images:
        raise UsageError(
            f"data.standardize=true is for features, but the examples are images of "
            f"{shape_text(image_shape)}; set data.mean and data.std, one number a channel"
        )
    if numbers != (DataConfig().mean, DataConfig().std):
        raise UsageError(
            f"data.standardize=true takes the place of data.mean={config.mean} and data.std="
            f"{config.std}; unset these, or data.standardize"
        )
    return Normalise(*known())


def unit_interval(image: jax.Array) -> jax.Array:
    """uint8 images to float32 in 0..1; floats stay as they are."""
    return image.astype(jnp.float32) / 255.0 if image.dtype == jnp.uint8 else image


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


class _Outputs(NamedTuple):
    """What the loss function gives beside its value."""

    loss: jax.Array
    logits: jax.Array
    label: jax.Array
    collections: Any


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

    def loss_fn(trained: Any, part: Batch) -> tuple[jax.Array, _Outputs]:
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
        return scaled, _Outputs(loss, logits, main_label(target), collections)

    gradients, outputs = _gradients(fixed, loss_fn, state, batch)
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


def _gradients(
    fixed: Fixed,
    loss_fn: Callable[[Any, Batch], tuple[jax.Array, _Outputs]],
    state: TrainState,
    batch: Batch,
) -> tuple[Any, _Outputs]:
    """The batch's gradients of the trained parameters, and the outputs of its examples.

    With `accumulate` N, part k holds the rows r with r % N = k (pairs of rows, where images are
    mixed), which leaves every row on its device. Each part starts from the same collections, and
    what they make of them is averaged by their unmasked rows: batch statistics move once an update,
    by the mean of the parts'.
    """
    grad_fn = jax.grad(loss_fn, has_aux=True)
    trained = fixed.optimizer.trained(state.params)
    if fixed.accumulate == 1:
        gradients, outputs = grad_fn(trained, batch)
        return fixed.total(gradients), outputs

    def of_part(part: Batch) -> tuple[Any, Any]:
        gradients, outputs = grad_fn(trained, part)
        weight = fixed.total(part.mask.sum(dtype=jnp.float32)) / jnp.maximum(count, 1.0)
        floats, others = _by_kind(outputs.collections)
        floats = [leaf.astype(jnp.float32) * weight for leaf in floats]
        return (gradients, floats), (outputs._replace(collections=None), others)

    count = fixed.total(batch.mask.sum(dtype=jnp.float32))
    together = fixed.augment.together
    parts = jax.tree.map(lambda x: _strided(x, fixed.accumulate, together), batch)
    (gradients, floats), (outputs, others) = summed(of_part, parts, unroll=fixed.unroll)
    old, _ = _by_kind(state.collections)
    floats = [
        jnp.where(count > 0, new, kept).astype(kept.dtype)
        for new, kept in zip(floats, old, strict=True)
    ]
    collections = _from_kinds(state.collections, floats, [leaf[-1] for leaf in others])
    outputs = jax.tree.map(lambda x: _joined(x, together), outputs)
    return fixed.total(gradients), outputs._replace(collections=collections)


def _is_float(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def _by_kind(tree: Any) -> tuple[list[jax.Array], list[jax.Array]]:
    """The leaves that an average can be taken of, and the others."""
    leaves = jax.tree.leaves(tree)
    return [x for x in leaves if _is_float(x)], [x for x in leaves if not _is_float(x)]


def _from_kinds(like: Any, floats: list[jax.Array], others: list[jax.Array]) -> Any:
    """The inverse of `_by_kind`, for a tree of the same structure."""
    left = {True: iter(floats), False: iter(others)}
    return jax.tree.map(lambda leaf: next(left[_is_float(leaf)]), like)


def _strided(rows: jax.Array, parts: int, together: int) -> jax.Array:
    """`[batch, ...]` as `[parts, batch / parts, ...]`, row r in part r // together % parts."""
    groups = rows.reshape(-1, parts, together, *rows.shape[1:]).swapaxes(0, 1)
    return groups.reshape(parts, -1, *rows.shape[1:])


def _joined(parts: jax.Array, together: int) -> jax.Array:
    """The inverse of `_strided`."""
    groups = parts.reshape(len(parts), -1, together, *parts.shape[2:]).swapaxes(0, 1)
    return groups.reshape(-1, *parts.shape[2:])


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
