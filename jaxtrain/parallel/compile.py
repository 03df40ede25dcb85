"""Compiling a pure step for a mesh."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from jaxtrain.parallel.mesh import on_cpu, replicated


def one_call(mesh: Mesh) -> dict[str, int] | None:
    """Compiler options for a program that runs once on `mesh`: to be compiled soon, not to be fast.

    On the CPU backend a new state's random numbers take LLVM three times as long as it takes
    without its last passes, for the same bits.
    """
    return {"xla_backend_optimization_level": 1} if on_cpu(mesh) else None


def compile_step(
    step: Callable[..., Any],
    mesh: Mesh,
    state: Any,
    resident: Any,
    feed: Any,
    *,
    feed_sharding: Any,
    donate: bool,
) -> Callable[..., Any]:
    """Compiles `step(state, resident, feed)` ahead of its first call.

    Args:
        step: a pure function. All that it returns is replicated.
        mesh: the devices.
        state: abstract; replicated.
        resident: abstract; replicated; None if the feed is the whole batch.
        feed: abstract.
        feed_sharding: how its arrays lie on the mesh: one sharding, or a tree of them.
        donate: whether `state` may be overwritten.

    Returns:
        The compiled function; its feed may be NumPy.
    """
    everywhere = replicated(mesh)
    jitted = jax.jit(
        step,
        in_shardings=(everywhere, everywhere, feed_sharding),
        out_shardings=everywhere,
        donate_argnums=(0,) if donate else (),
    )
    return jitted.lower(state, resident, feed).compile()
