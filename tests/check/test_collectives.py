"""Collectives in HLO text, as the TPU compiler writes it and as the CPU's does."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxtrain.check.collectives import Collectives, collectives
from jaxtrain.parallel.mesh import build_mesh

TPU = Path(__file__).with_name("step.hlo").read_text()


def test_text_of_the_tpu_compiler():
    """The condition of the outer loop has no constant, so that it counts once; the inner has 4."""
    assert collectives(TPU) == [
        Collectives("all-reduce", 2, 4 * (10 + 5120) + 4),
        Collectives("reduce-scatter", 1, 4 * 128 * 1024),
        Collectives("all-gather", 1, 2 * 64 * 128),
        Collectives("collective-permute", 4, 4 * 2 * 64 * 128),
    ]


def test_a_loop_that_says_how_often_it_turns():
    told = 'body=%steps, backend_config={"known_trip_count":{"n":"3"},"x":[]}'
    counts = {one.kind: one.count for one in collectives(TPU.replace("body=%steps", told))}
    assert counts == {
        "all-reduce": 6,
        "reduce-scatter": 1,
        "all-gather": 3,
        "collective-permute": 12,
    }


@pytest.fixture(scope="module")
def mesh():
    return build_mesh("data=4,model=2", jax.devices())


def compiled(function, mesh, given, wanted, *shape):
    x = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, given))
    jitted = jax.jit(function, out_shardings=NamedSharding(mesh, wanted))
    return jitted.lower(x).compile().as_text()


def test_programs_compiled_here(mesh):
    gathered = compiled(lambda x: x * 2, mesh, P("data"), P(), 64, 8)
    assert collectives(gathered) == [Collectives("all-gather", 1, 64 * 8 * 4)]
    summed = compiled(lambda x: x.sum(0), mesh, P("data"), P(), 64, 8)
    assert collectives(summed) == [Collectives("all-reduce", 1, 8 * 4)]
    alone = compiled(lambda x: x * 2, mesh, P("data"), P("data"), 64, 8)
    assert collectives(alone) == []


def test_a_loop_compiled_here(mesh):
    def turns(x):
        return jax.lax.fori_loop(0, 5, lambda _, y: y + (x * y).sum(0, keepdims=True), x)

    (one,) = collectives(compiled(turns, mesh, P("data"), P("data"), 64, 64))
    assert (one.kind, one.count, one.bytes) == ("all-reduce", 5, 5 * 64 * 4)
