import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.parallel.loop import repeated, summed


@pytest.mark.parametrize("count", [0, 1, 5])
def test_repeated_is_a_loop(count):
    def step(i, state):
        return state * 2 + i, {"last": i}

    state, metrics = jax.jit(lambda n: repeated(step, jnp.int32(1), n))(count)
    expected = 1
    for i in range(count):
        expected = expected * 2 + i
    assert int(state) == expected
    assert int(metrics["last"]) == max(count - 1, 0)


@pytest.mark.parametrize("unroll", [True, False])
def test_summed_adds_and_stacks(unroll):
    parts = {"x": jnp.arange(6.0).reshape(3, 2)}

    def function(part):
        return {"sum": part["x"]}, part["x"] * 10

    total, stacked = jax.jit(lambda p: summed(function, p, unroll=unroll))(parts)
    np.testing.assert_array_equal(total["sum"], [6, 9])
    np.testing.assert_array_equal(stacked, [[0, 10], [20, 30], [40, 50]])


def test_unrolled_there_is_no_loop():
    def function(part):
        return part, part

    for unroll in (True, False):
        jaxpr = jax.make_jaxpr(lambda p, u=unroll: summed(function, p, unroll=u))(jnp.ones((3, 2)))
        assert ("scan" in str(jaxpr)) is not unroll
