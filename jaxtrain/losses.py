"""Losses of an example, of one class or of shares of several."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxtrain.errors import UsageError

# (logits float32 `[batch, classes]`, target) to float32 `[batch]`. A target is int32 labels
# `[batch]`, or each class's share of the label, float32 `[batch, classes]`.
Loss = Callable[[jax.Array, jax.Array], jax.Array]


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
