import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.loss_scale import LossScale

FINITE = {"a": jnp.array([2.0, -4.0]), "b": jnp.array(8.0)}


def at(scale: float, finite_steps: int = 0) -> LossScale:
    made = LossScale.create()
    return made.replace(scale=jnp.float32(scale), finite_steps=jnp.int32(finite_steps))


def test_gradients_are_divided_by_the_scale():
    gradients, following, hopeless = at(4.0).unscaled(FINITE)
    np.testing.assert_array_equal(gradients["a"], [0.5, -1.0])
    assert gradients["b"] == 2.0
    assert (float(following.scale), int(following.finite_steps)) == (4.0, 1)
    assert not hopeless
    assert not following.skipped
    assert following.unless_skipped({"x": jnp.ones(2)}, {"x": jnp.zeros(2)})["x"].tolist() == [1, 1]


def test_it_doubles_after_many_finite_updates():
    _, following, _ = at(4.0, 1998).unscaled(FINITE)
    assert (float(following.scale), int(following.finite_steps)) == (4.0, 1999)
    _, following, _ = following.unscaled(FINITE)
    assert (float(following.scale), int(following.finite_steps)) == (8.0, 0)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_one_bad_gradient_skips_the_update_and_halves_it(bad):
    gradients, following, hopeless = at(4.0, 77).unscaled({**FINITE, "b": jnp.array(bad)})
    np.testing.assert_array_equal(gradients["a"], [0, 0])
    assert (float(following.scale), int(following.finite_steps)) == (2.0, 0)
    assert following.skipped
    assert not hopeless
    assert following.unless_skipped({"x": jnp.ones(2)}, {"x": jnp.zeros(2)})["x"].tolist() == [0, 0]


def test_below_the_least_scale_there_is_no_hope():
    _, following, hopeless = at(1.0).unscaled({"a": jnp.array(np.inf)})
    assert hopeless
    assert float(following.scale) == 1.0
