"""Losses of an example, of one class or of shares of several."""

from collections.abc import Callable
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxtrain.config.choices import unknown
from jaxtrain.errors import UsageError

# (logits float32 `[batch, classes]`, target) to float32 `[batch]`. A target is int32 labels
# `[batch]`, or each class's share of the label, float32 `[batch, classes]`.
Loss = Callable[[jax.Array, jax.Array], jax.Array]


LOSSES: Final = ("softmax", "binary")


def softmax_loss(logits: jax.Array, label: jax.Array) -> jax.Array:
    """Cross-entropy of a softmax, each example's own: float32 `[batch]`, in nats."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)


def training_loss(
    name: str,
    label_smoothing: float,
    class_weights: tuple[float, ...] | None,
    binary_threshold: float | None = None,
) -> Loss:
    """The loss to train on.

    An example has a target y: the shares of K classes, all of one where it is not mixed. With s of
    label smoothing (Szegedy et al., 2016) that is (1 - s) y + s / K, and with w of class weights:

        softmax  sum_k w_k y_k ((1 - s) (-log p_k) + s / K sum_j (-log p_j)), p a softmax
        binary   sum_k w_k y_k times the mean over classes of the binary cross-entropy of their
                 sigmoids with the smoothed target (as timm has it for Wightman et al., "ResNet
                 strikes back", 2021), rounded to 0 or 1 at the threshold, if there is one

    Args:
        name: one of `LOSSES`.
        label_smoothing: share s of the target that is spread over all classes, the right one too.
        class_weights: factors on the losses of the examples of each class.
        binary_threshold: with `binary`, what a class's share must exceed to count as a whole one.

    Raises:
        UsageError: an unknown name, or a threshold for another loss than `binary`.
    """
    if name not in LOSSES:
        raise unknown("train.loss", name, LOSSES)
    if name == "binary":
        return _binary_loss(label_smoothing, class_weights, binary_threshold)
    if binary_threshold is not None:
        raise UsageError(
            f"train.binary_threshold={binary_threshold:g} is set, but train.loss={name} does not "
            "read it; set train.loss=binary, or train.binary_threshold=None"
        )
    return _softmax_loss(label_smoothing, class_weights)


def _softmax_loss(label_smoothing: float, class_weights: tuple[float, ...] | None) -> Loss:
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


def _binary_loss(
    label_smoothing: float, class_weights: tuple[float, ...] | None, threshold: float | None
) -> Loss:
    def loss_fn(logits: jax.Array, target: jax.Array) -> jax.Array:
        classes = logits.shape[-1]
        shares = jax.nn.one_hot(target, classes) if target.ndim == 1 else target
        smoothed = (1.0 - label_smoothing) * shares + label_smoothing / classes
        if threshold is not None:
            smoothed = (smoothed > threshold).astype(jnp.float32)
        loss = optax.sigmoid_binary_cross_entropy(logits, smoothed).mean(-1)
        if class_weights is not None:
            loss *= (shares * jnp.asarray([class_weights], jnp.float32)).sum(-1)
        return loss

    return loss_fn


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
