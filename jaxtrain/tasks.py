"""What a model is trained for: loss, interval metrics, per-example results and their summary."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

import clu.metrics
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxtrain.losses import softmax_loss


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

# Of more classes than these, how often the label is one of the most probable so many.
_TOP: Final = 5


@dataclasses.dataclass(frozen=True)
class Task:
    """One kind of learning problem.

    Attributes:
        results: (logits, label) to the per-example arrays that evaluation collects, all `[batch]`.
        summary: those arrays over a whole split, as NumPy `[examples]`, to plain numbers.
    """

    results: Callable[[jax.Array, jax.Array], dict[str, jax.Array]]
    summary: Callable[[Mapping[str, np.ndarray]], dict[str, Any]]


def classification_results(logits: jax.Array, label: jax.Array) -> dict[str, jax.Array]:
    """What evaluation keeps of each example.

    Returns:
        `loss` float32, `prediction` int32 (class of the largest logit), `correct` bool,
        `probability` float32 (of the prediction), `finite` bool (the loss and all logits are), and
        where there are more than 5 classes `top5` bool (the label is one of the 5 most probable),
        all `[batch]`.
    """
    prediction = logits.argmax(-1).astype(jnp.int32)
    loss = softmax_loss(logits, label)
    results = {
        "loss": loss,
        "prediction": prediction,
        "correct": prediction == label,
        "probability": jax.nn.softmax(logits).max(-1),
        "finite": jnp.isfinite(logits).all(-1) & jnp.isfinite(loss),
    }
    if logits.shape[-1] > _TOP:
        results["top5"] = _rank(logits, label) < _TOP
    return results


def _rank(logits: jax.Array, label: jax.Array) -> jax.Array:
    """How many classes come before the label's, of equals the first: int32 `[batch]`."""
    own = jnp.take_along_axis(logits, label[:, jnp.newaxis], axis=-1)
    before = jnp.arange(logits.shape[-1])[jnp.newaxis] < label[:, jnp.newaxis]
    return ((logits > own) | ((logits == own) & before)).sum(-1, dtype=jnp.int32)


def classification_summary(results: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Mean loss and accuracy, averaged in float64 in data order, and the count behind them.

    The accuracy of the 5 most probable classes too, where there are more.
    """
    summary: dict[str, Any] = {"loss": float(results["loss"].astype(np.float64).mean())}
    for name, of in (("accuracy", "correct"), ("top5_accuracy", "top5")):
        if of in results:
            summary[name] = float(results[of].astype(np.float64).mean())
    return summary | {"count": len(results["correct"])}


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
