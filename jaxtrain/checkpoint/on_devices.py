"""What is computed of a state before it is saved and after it is read, where its arrays lie."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from jaxtrain.state import all_finite, fingerprint


class Looked(NamedTuple):
    """What is to be known of a state before it is saved.

    Attributes:
        finite: whether every float of the model is finite.
        model: a checksum of each of the model's arrays.
        training: the same for the rest of the state.
    """

    finite: bool
    model: list[int]
    training: list[int]


def look(model: Any, training: Any) -> Looked:
    """Looks at the two parts of a state; every process finds the same."""
    finite, *sums = jax.device_get(_compiled(_look, _everywhere(model))(model, training))
    return Looked(bool(finite), *(part.tolist() for part in sums))


def checksums(tree: Any) -> list[int]:
    """A checksum of each array of a tree, in the order of `jax.tree.leaves`."""
    found: list[int] = jax.device_get(_compiled(fingerprint, _everywhere(tree))(tree)).tolist()
    return found


def _look(model: Any, training: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    return all_finite(model), fingerprint(model), fingerprint(training)


@functools.cache
def _compiled(function: Callable[..., Any], out: Sharding | None) -> Callable[..., Any]:
    return jax.jit(function, out_shardings=out)


def _everywhere(tree: Any) -> Sharding | None:
    """A full copy on each device that holds a part of the tree, where one process sees not all."""
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf.sharding, NamedSharding):
            return NamedSharding(leaf.sharding.mesh, PartitionSpec())
    return None
