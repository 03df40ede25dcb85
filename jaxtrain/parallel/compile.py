"""Compiling a pure step for a mesh, under `jit` or `pmap`.

Every compiled step also takes whether this process was asked to stop, and gives how many devices'
processes were: all processes read that of the same call, and so stop after the same one.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxtrain.parallel.mesh import AnyMesh, on_cpu, over_devices, replicated, shardings

# The axis of the devices inside `pmap`.
PMAP_AXIS = "data"


class Sent(NamedTuple):
    """What a compiled step gives.

    Attributes:
        result: of the step itself, on the devices.
        stops: int32 `[]` on the devices, 0 unless some process was asked to stop.
    """

    result: Any
    stops: jax.Array


# (state, feed, whether this process was asked to stop) to what it gives
Compiled = Callable[[Any, Any, bool], Sent]


def one_call(mesh: AnyMesh) -> dict[str, int] | None:
    """Compiler options for a program that runs once on `mesh`: to be compiled soon, not to be fast.

    On the CPU backend a new state's random numbers take LLVM three times as long as it takes
    without its last passes, for the same bits.
    """
    return {"xla_backend_optimization_level": 1} if on_cpu(mesh) else None


def lower_jit(
    step: Callable[..., Any],
    mesh: AnyMesh,
    state: Any,
    resident: Any,
    feed: Any,
    *,
    feed_sharding: Any,
    keeps_state: bool,
) -> jax.stages.Lowered:
    """`step(state, resident, feed)` with the stop, lowered for a mesh.

    Args:
        step: a pure function.
        mesh: the devices.
        state: abstract, with shardings.
        resident: abstract; replicated; None if the feed is the whole batch.
        feed: abstract.
        feed_sharding: how its arrays lie on the mesh: one sharding, or a tree of them.
        keeps_state: whether the step gives (a new state in the place of the old one, results)
            instead of results, which are replicated.

    Returns:
        A program of (state, resident, feed, int32 `[devices]`), which gives (result, int32 `[]`).
    """
    everywhere = replicated(mesh)
    of_state = shardings(state)

    def with_stop(state: Any, resident: Any, feed: Any, stop: jax.Array) -> Any:
        return step(state, resident, feed), stop.sum()

    jitted = jax.jit(
        with_stop,
        in_shardings=(of_state, everywhere, feed_sharding, over_devices(mesh)),
        out_shardings=((of_state, everywhere) if keeps_state else everywhere, everywhere),
        donate_argnums=(0,) if keeps_state else (),
    )
    stop = jax.ShapeDtypeStruct((mesh.size,), jnp.int32)
    return jitted.lower(state, resident, feed, stop)


def lower_pmap(
    step: Callable[..., Any], mesh: Mesh, state: Any, resident: Any, feed: Any
) -> jax.stages.Lowered:
    """`lower_jit` under `pmap`, for a step that keeps its state: each device runs it on its rows.

    Args:
        step: a pure function, which sums over `PMAP_AXIS` what is to be of the whole batch. What
            it gives is the same on every device.
        mesh: the devices, all along one axis.
        state: abstract; replicated, in its plain shape.
        resident: likewise; None if the feed is the whole batch.
        feed: abstract, every array `[devices, ...]`.
    """

    def with_stop(state: Any, resident: Any, feed: Any, stop: jax.Array) -> Any:
        return step(state, resident, feed), jax.lax.psum(stop, PMAP_AXIS)

    mapped = jax.pmap(
        with_stop,
        axis_name=PMAP_AXIS,
        in_axes=(None, None, 0, 0),
        out_axes=None,
        devices=list(mesh.devices.flat),
        donate_argnums=(0,),
    )
    whole, parts = (state, resident), (feed, jax.ShapeDtypeStruct((mesh.size,), jnp.int32))
    if len(mesh.local_devices) < mesh.size:
        # It takes what it is given for this process's own part and makes the whole of it, for
        # which shapes alone are not enough.
        devices = len(mesh.local_devices)
        whole = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), whole)
        parts = jax.tree.map(lambda leaf: np.zeros((devices, *leaf.shape[1:]), leaf.dtype), parts)
    lowered: jax.stages.Lowered = mapped.lower(*whole, *parts)
    return lowered


def compiled(program: jax.stages.Compiled, mesh: Mesh, resident: Any) -> Compiled:
    """The program as a function of what changes; its feed may be NumPy, the whole in each process.

    Args:
        program: what `lower_jit` or `lower_pmap` gave, compiled.
        mesh: the devices.
        resident: what it was lowered for.
    """
    # JAX takes a global array's NumPy value to be the same everywhere. Of this one each device gets
    # its own element alone, from its own process, and that is what is to differ.
    flags = {asked: np.full(mesh.size, asked, np.int32) for asked in (False, True)}
    return lambda state, feed, asked: Sent(*program(state, resident, feed, flags[asked]))
