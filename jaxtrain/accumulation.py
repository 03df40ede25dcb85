"""Gradients of a batch as a whole, or of its parts one after the other."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxtrain.data import Batch
from jaxtrain.parallel.loop import summed


class Outputs(NamedTuple):
    """What the loss function gives beside its value.

    Attributes:
        loss: float32 `[batch]`, of each example.
        logits: float32 `[batch, classes]`.
        label: int32 `[batch]`, which a prediction is compared with.
        collections: the model's collections after the batch.
    """

    loss: jax.Array
    logits: jax.Array
    label: jax.Array
    collections: Any


def accumulated(
    grad_fn: Callable[[Any, Batch], tuple[Any, Outputs]],
    trained: Any,
    collections: Any,
    batch: Batch,
    *,
    parts: int,
    together: int,
    unroll: bool,
    total: Callable[[Any], Any],
) -> tuple[Any, Outputs]:
    """The batch's gradients of the trained parameters, and the outputs of its examples.

    Part k holds the rows r with r // together % parts = k, which leaves every row on its device.
    Each part starts from the same collections, and what they make of them is averaged by their
    unmasked rows: batch statistics move once an update, by the mean of the parts'.

    Args:
        grad_fn: parameters and rows to gradients of a sum over them, and the rows' outputs.
        trained: the parameters.
        collections: the model's collections before the batch.
        batch: the rows.
        parts: computed one after the other; divides the batch.
        together: neighbouring rows that stay in one part, as images that are mixed.
        unroll: whether the parts are compiled without a loop.
        total: sums over the rows of this program to sums over all.
    """
    if parts == 1:
        gradients, outputs = grad_fn(trained, batch)
        return total(gradients), outputs

    def of_part(part: Batch) -> tuple[Any, Any]:
        gradients, outputs = grad_fn(trained, part)
        weight = total(part.mask.sum(dtype=jnp.float32)) / jnp.maximum(count, 1.0)
        floats, others = _by_kind(outputs.collections)
        floats = [leaf.astype(jnp.float32) * weight for leaf in floats]
        return (gradients, floats), (outputs._replace(collections=None), others)

    count = total(batch.mask.sum(dtype=jnp.float32))
    strided = jax.tree.map(lambda x: _strided(x, parts, together), batch)
    (gradients, floats), (outputs, others) = summed(of_part, strided, unroll=unroll)
    old, _ = _by_kind(collections)
    floats = [
        jnp.where(count > 0, new, kept).astype(kept.dtype)
        for new, kept in zip(floats, old, strict=True)
    ]
    collections = _from_kinds(collections, floats, [leaf[-1] for leaf in others])
    outputs = jax.tree.map(lambda x: _joined(x, together), outputs)
    return total(gradients), outputs._replace(collections=collections)


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
