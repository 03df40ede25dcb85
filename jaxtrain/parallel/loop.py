"""Loops inside a compiled step, where XLA compiles them well.

On the CPU backend a convolution inside a loop is many times slower than outside of it, and not
bit-equal (20 times, with jax 0.10.2), so there a step with convolutions is unrolled.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


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


def summed(
    function: Callable[[Any], tuple[Any, Any]], parts: Any, *, unroll: bool
) -> tuple[Any, Any]:
    """What `function(part)` gives for every part: the first results added up, the others stacked.

    Args:
        function: pure; gives (a tree to add up, a tree to stack).
        parts: a tree of arrays `[parts, ...]`.
        unroll: whether the parts are compiled one after the other instead of as a loop.
    """
    if unroll:
        count = len(jax.tree.leaves(parts)[0])
        done = [function(jax.tree.map(lambda x, i=i: x[i], parts)) for i in range(count)]
        total = done[0][0]
        for each, _ in done[1:]:
            total = jax.tree.map(jnp.add, total, each)
        return total, jax.tree.map(lambda *each: jnp.stack(each), *(each for _, each in done))

    def add(total: Any, part: Any) -> tuple[Any, Any]:
        each, kept = function(part)
        return jax.tree.map(jnp.add, total, each), kept

    shapes, _ = jax.eval_shape(function, jax.tree.map(lambda x: x[0], parts))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    scanned: tuple[Any, Any] = jax.lax.scan(add, zeros, parts)
    return scanned
