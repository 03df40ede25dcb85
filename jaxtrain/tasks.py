"""What a model is trained for: loss, interval metrics, per-example results and their summary."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Self

import clu.metrics
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from jaxtrain.errors import UsageError


@flax.struct.dataclass
class Interval(clu.metrics.Metric):
    """Sums and counts over the steps of one report interval.

    The total is float32 and the counts are integers: a running mean in the compute dtype would
    drift, and an accuracy must be a ratio of two exact counts.

    Attributes:
        loss: float32 `[]`, sum of the unmasked examples' losses.
        correct: int32 `[]`, unmasked examples whose prediction is right.
        count: int32 `[]`, unmasked examples.
        bad_step: int32 `[]`, first step with a loss that is not finite; 0 if none.
    """

    loss: jax.Array
    correct: jax.Array
    count: jax.Array
    bad_step: jax.Array

    @classmethod
    def empty(cls) -> Self:
        """The interval before its first step."""
        # An array each: a state with one buffer in two places cannot be donated.
        counts = {name: jnp.zeros((), jnp.int32) for name in ("correct", "count", "bad_step")}
        return cls(loss=jnp.zeros((), jnp.float32), **counts)

    @classmethod
    def from_model_output(
        cls,
        *,
        loss: jax.Array,
        logits: jax.Array,
        label: jax.Array,
        mask: jax.Array,
        step: jax.Array,
        axis: str | None = None,
    ) -> Self:
        """One step's part.

        Args:
            loss: float32 `[batch]`.
            logits: float32 `[batch, classes]`.
            label: int32 `[batch]`; `main_label` of mixed examples.
            mask: bool `[batch]`; False rows count nowhere.
            step: int32 `[]`.
            axis: the axis of the devices, if these are the rows of one of them.
        """
        sums = (
            jnp.where(mask, loss, 0.0).sum(),
            (mask & (logits.argmax(-1) == label)).sum(dtype=jnp.int32),
            mask.sum(dtype=jnp.int32),
        )
        total, correct, count = sums if axis is None else jax.lax.psum(sums, axis)
        return cls(
            loss=total,
            correct=correct,
            count=count,
            bad_step=jnp.where(jnp.isfinite(total), 0, step).astype(jnp.int32),
        )

    def merge(self, other: Self) -> Self:
        """This interval followed by `other`."""
        return type(self)(
            loss=self.loss + other.loss,
            correct=self.correct + other.correct,
            count=self.count + other.count,
            bad_step=jnp.where(self.bad_step > 0, self.bad_step, other.bad_step),
        )

    def compute(self) -> dict[str, float | None]:
        """Mean loss and accuracy, in float64 on the host; None where no example counts."""
        count = int(self.count)
        if not count:
            return {"loss": None, "accuracy": None}
        return {"loss": float(self.loss) / count, "accuracy": int(self.correct) / count}


# Images uint8 `[n, H, W, C]` or features float32 `[n, D]`, n at least 1, to float32 logits or
# probabilities `[n, classes]`.
Outputs = Callable[[NDArray[Any]], NDArray[np.float32]]

# (logits float32 `[batch, classes]`, target) to float32 `[batch]`. A target is int32 labels
# `[batch]`, or each class's share of the label, float32 `[batch, classes]`.
Loss = Callable[[jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Task:
    """One kind of learning problem.

    Attributes:
        results: (logits, label) to the per-example arrays that evaluation collects, all `[batch]`.
        summary: those arrays over a whole split, as NumPy `[examples]`, to plain numbers.
    """

    results: Callable[[jax.Array, jax.Array], dict[str, jax.Array]]
    summary: Callable[[Mapping[str, np.ndarray]], dict[str, Any]]


def softmax_loss(logits: jax.Array, label: jax.Array) -> jax.Array:
    """Cross-entropy of a softmax, each example's own: float32 `[batch]`, in nats."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)


def training_loss(label_smoothing: float, class_weights: tuple[float, ...] | None) -> Loss:
    """The softmax loss to train on.

    With s of label smoothing (Szegedy et al., 2016) and w of class weights, an example of class k
    of K has the loss L_k = w_k ((1 - s) (-log p_k) + s / K sum_j (-log p_j)), and one with shares y
    of several classes sum_k y_k L_k: each part counts as it would alone.

    Args:
        label_smoothing: share s of the target that is spread over all classes, the right one too.
        class_weights: factors on the losses of the examples of each class.
    """

    def of_labels(logits: jax.Array, label: jax.Array) -> jax.Array:
        loss = softmax_loss(logits, label)
        if label_smoothing:
            uniform = -jax.nn.log_softmax(logits).mean(-1)
            loss = (1.0 - label_smoothing) * loss + label_smoothing * uniform
        if class_weights is not None:
            loss *= jnp.asarray(class_weights, jnp.float32)[label]
        return loss

    def of_shares(logits: jax.Array, shares: jax.Array) -> jax.Array:
        losses = -jax.nn.log_softmax(logits)
        if label_smoothing:
            uniform = losses.mean(-1, keepdims=True)
            losses = (1.0 - label_smoothing) * losses + label_smoothing * uniform
        if class_weights is not None:
            losses *= jnp.asarray([class_weights], jnp.float32)
        return (shares * losses).sum(-1)

    return lambda logits, target: (of_labels if target.ndim == 1 else of_shares)(logits, target)


def soft_target(label: jax.Array, other: jax.Array, share: jax.Array, classes: int) -> jax.Array:
    """Each class's share of mixed examples: float32 `[batch, classes]`.

    Args:
        label: int32 `[batch]`.
        other: int32 `[batch]`, label of what is mixed in.
        share: float32 `[batch]` in 0..1, of `label`; the rest is of `other`.
        classes: number of classes.
    """
    own, mixed_in = (jax.nn.one_hot(each, classes) for each in (label, other))
    share = share[:, jnp.newaxis]
    return share * own + (1.0 - share) * mixed_in


def main_label(target: jax.Array) -> jax.Array:
    """The class with the largest share of a target, of equals the first: int32 `[batch]`."""
    return target if target.ndim == 1 else target.argmax(-1).astype(jnp.int32)


def parse_class_weights(
    text: str | None, labels: np.ndarray, num_classes: int
) -> tuple[float, ...] | None:
    """`data.class_weights` as numbers.

    Args:
        text: `balanced`, one number a class, or None. Balanced is N / (K x the class's examples),
            whose mean over the N examples is 1; a class without examples gets 0.
        labels: int32 `[N]`, of the training examples.
        num_classes: K.

    Raises:
        UsageError: neither of these.
    """
    if text is None:
        return None
    if text == "balanced":
        counts = np.bincount(labels, minlength=num_classes)
        weights = len(labels) / (num_classes * np.maximum(counts, 1)) * (counts > 0)
        return tuple(weights.tolist())
    bare = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    try:
        numbers = tuple(float(part) for part in bare.split(","))
    except ValueError:
        numbers = ()
    fits = len(numbers) == num_classes and all(0 <= number <= 1e6 for number in numbers)
    if not fits or max(numbers) < 1e-6:
        raise UsageError(
            f"data.class_weights={text!r} must be balanced, or {num_classes} numbers of 0 to 1e6, "
            "one a class and not all 0, as in 1,2.5,..."
        )
    return numbers


def classification_results(logits: jax.Array, label: jax.Array) -> dict[str, jax.Array]:
    """What evaluation keeps of each example.

    Returns:
        `loss` float32, `prediction` int32 (class of the largest logit), `correct` bool,
        `probability` float32 (of the prediction), `finite` bool (the loss and all logits are), all
        `[batch]`.
    """
    prediction = logits.argmax(-1).astype(jnp.int32)
    loss = softmax_loss(logits, label)
    return {
        "loss": loss,
        "prediction": prediction,
        "correct": prediction == label,
        "probability": jax.nn.softmax(logits).max(-1),
        "finite": jnp.isfinite(logits).all(-1) & jnp.isfinite(loss),
    }


def classification_summary(results: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Mean loss and accuracy, averaged in float64 in data order, and the count behind them."""
    return {
        "loss": float(results["loss"].astype(np.float64).mean()),
        "accuracy": float(results["correct"].astype(np.float64).mean()),
        "count": len(results["correct"]),
    }


def ranked(logits: jax.Array, top_k: int) -> dict[str, jax.Array]:
    """The most probable classes of each example; of equals the first.

    Args:
        logits: float32 `[batch, classes]`.
        top_k: how many, k; at most the classes.

    Returns:
        `top` int32 and `top_probability` float32, both `[batch, k]`, the most probable first.
    """
    _, top = jax.lax.top_k(logits, top_k)  # probabilities may be equal where logits are not
    probability = jnp.take_along_axis(jax.nn.softmax(logits), top, axis=-1)
    return {"top": top, "top_probability": probability}


def with_ranking(task: Task, top_k: int) -> Task:
    """The task whose results have those of `ranked` too."""

    def results(logits: jax.Array, label: jax.Array) -> dict[str, jax.Array]:
        return {**task.results(logits, label), **ranked(logits, top_k)}

    return dataclasses.replace(task, results=results)


CLASSIFICATION = Task(classification_results, classification_summary)
