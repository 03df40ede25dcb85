import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import data_mesh
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrain.models import norms
from jaxtrain.models.norms import BatchNorm
from jaxtrain.parallel.mesh import over_rows, replicated

SHAPE = (8, 3, 2, 5)
RANDOM = np.random.RandomState(0)
INPUTS = RANDOM.standard_normal(SHAPE).astype(np.float32) * [1, 2, 3, 4, 5] + [0, 1, -1, 50, 300]
INPUTS = INPUTS.astype(np.float32)
COTANGENT = RANDOM.standard_normal(SHAPE).astype(np.float32)
PARAMS = {
    "scale": RANDOM.uniform(0.5, 2, 5).astype(np.float32),
    "bias": RANDOM.standard_normal(5).astype(np.float32),
}
STATS = {
    "mean": RANDOM.standard_normal(5).astype(np.float32),
    "var": RANDOM.uniform(0.5, 2, 5).astype(np.float32),
}
ALL = np.ones(8, bool)
SOME = np.array([1, 0, 1, 1, 0, 0, 1, 1], bool)


def apply(params, inputs, mask, train=True):
    """Outputs and the running statistics after the call."""
    variables = {"params": params, "batch_stats": STATS}
    outputs, updated = BatchNorm().apply(
        variables, inputs, mask=mask, train=train, mutable=["batch_stats"]
    )
    return outputs, updated["batch_stats"]


@jax.jit
def run(params, inputs, mask, cotangent):
    """Outputs, running statistics, and gradients of parameters and inputs."""
    outputs, pull, stats = jax.vjp(
        functools.partial(apply, mask=mask), params, inputs, has_aux=True
    )
    return outputs, stats, *pull(cotangent)


def reference(inputs, mask):
    """Outputs and running statistics in float64, by the textbook."""
    counted = inputs[mask].astype(np.float64)
    mean, variance = counted.mean((0, 1, 2)), counted.var((0, 1, 2))
    outputs = (counted - mean) / np.sqrt(variance + 1e-5) * PARAMS["scale"] + PARAMS["bias"]
    unbiased = counted.var((0, 1, 2), ddof=1)
    stats = {
        "mean": 0.9 * STATS["mean"] + 0.1 * mean,
        "var": 0.9 * STATS["var"] + 0.1 * unbiased,
    }
    return outputs, stats


def assert_close(found, wanted, rtol=1e-4):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol, atol=2e-4), found, wanted)


class TestBatchNorm:
    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.booleans(), min_size=8, max_size=8).filter(any), st.sampled_from([0, 1000]))
    def test_is_the_textbooks_over_the_rows_that_count(self, mask, offset):
        mask = np.array(mask)
        inputs = np.where(mask[:, None, None, None], INPUTS + np.float32(offset), np.nan)
        outputs, stats, *_ = run(PARAMS, inputs, mask, COTANGENT)
        wanted, wanted_stats = reference(inputs, mask)
        # An offset of 1000 leaves a deviation of 1 four digits.
        np.testing.assert_allclose(outputs[mask], wanted, rtol=1e-3, atol=1e-3)
        assert_close(stats, wanted_stats)
        assert (outputs[~mask] == 0).all()

    def test_its_gradient_is_the_one_that_jax_derives(self):
        def plain(params, inputs):
            mean = inputs.mean((0, 1, 2), keepdims=True)
            variance = ((inputs - mean) ** 2).mean((0, 1, 2), keepdims=True)
            scale, bias = (params[name][None, None, None] for name in ("scale", "bias"))
            return (inputs - mean) / jnp.sqrt(variance + 1e-5) * scale + bias

        _, pull = jax.vjp(plain, PARAMS, INPUTS)
        assert_close(run(PARAMS, INPUTS, ALL, COTANGENT)[2:], pull(COTANGENT))

    @pytest.mark.parametrize("garbage", [0.0, 1e30, np.inf, np.nan])
    def test_rows_that_do_not_count_change_nothing(self, garbage):
        inputs = np.where(SOME[:, None, None, None], INPUTS, np.float32(garbage))
        outputs, stats, to_params, to_inputs = run(PARAMS, inputs, SOME, COTANGENT)
        rows = SOME.nonzero()[0]
        wanted = run(PARAMS, INPUTS[rows], ALL[rows], COTANGENT[rows])
        assert_close((outputs[rows], stats, to_params, to_inputs[rows]), wanted, rtol=1e-5)
        assert (outputs[~SOME] == 0).all()
        assert (to_inputs[~SOME] == 0).all()

    def test_no_row_that_counts_moves_nothing(self):
        found = run(PARAMS, np.full(SHAPE, np.nan, np.float32), ~ALL, COTANGENT)
        outputs, stats, *gradients = found
        jax.tree.map(np.testing.assert_array_equal, stats, STATS)
        assert all((leaf == 0).all() for leaf in jax.tree.leaves((outputs, gradients)))

    def test_one_pixel_is_enough(self):
        outputs, stats, *gradients = run(PARAMS, INPUTS[:1, :1, :1], ALL[:1], COTANGENT[:1, :1, :1])
        np.testing.assert_allclose(outputs[0, 0, 0], PARAMS["bias"])
        np.testing.assert_allclose(stats["var"], 0.9 * STATS["var"], rtol=1e-6)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))

    def test_evaluation_uses_the_running_statistics_for_every_row(self):
        outputs, stats = apply(PARAMS, INPUTS, ~ALL, train=False)
        deviation = np.sqrt(STATS["var"].astype(np.float64) + 1e-5)
        wanted = (INPUTS - STATS["mean"]) / deviation * PARAMS["scale"] + PARAMS["bias"]
        assert_close(outputs, wanted)
        jax.tree.map(np.testing.assert_array_equal, stats, STATS)

    def test_eight_devices_agree_with_one_though_one_has_no_row_that_counts(self):
        mesh = data_mesh(jax.devices())
        rows, everywhere = over_rows(mesh), replicated(mesh)
        inputs = np.where(SOME[:, None, None, None], INPUTS, np.float32(np.nan))
        spread = jax.jit(run, in_shardings=(everywhere, rows, rows, rows))
        found = spread(PARAMS, inputs, SOME, COTANGENT)
        assert found[0].sharding.is_equivalent_to(rows, 4)
        assert_close(found, run(PARAMS, inputs, SOME, COTANGENT), rtol=1e-5)

    @pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
    def test_half_precision_has_float32_statistics(self, dtype):
        inputs = jnp.asarray(INPUTS + 1000, dtype)  # squares are above what float16 holds
        outputs, stats, to_params, to_inputs = run(
            PARAMS, inputs, SOME, jnp.asarray(COTANGENT, dtype)
        )
        wanted, wanted_stats = reference(np.asarray(inputs, np.float32), SOME)
        assert {leaf.dtype for leaf in jax.tree.leaves((stats, to_params))} == {
            jnp.dtype("float32")
        }
        assert (outputs.dtype, to_inputs.dtype) == (dtype, dtype)
        assert_close(stats, wanted_stats)
        error = jnp.finfo(dtype).eps
        np.testing.assert_allclose(outputs[SOME].astype(np.float32), wanted, error, error)

    @pytest.mark.parametrize("zero", [False, True])
    def test_starts_as_the_identity_or_as_nothing(self, zero):
        variables = BatchNorm(zero).init(jax.random.key(0), INPUTS, mask=ALL, train=False)
        scale = np.full(5, 0.0 if zero else 1.0)
        wanted = {
            "params": {"scale": scale, "bias": np.zeros(5)},
            "batch_stats": {"mean": np.zeros(5), "var": np.ones(5)},
        }
        jax.tree.map(np.testing.assert_array_equal, variables, wanted)


class TestGroupNorm:
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, inputs, mask, zero=False):
            return norms.normalise(
                inputs, groups=3, mask=mask, train=True, axis=None, name="norm", zero_scale=zero
            )

    inputs = RANDOM.standard_normal((8, 4, 2, 6)).astype(np.float32) * 5 + 300

    def test_normalises_each_example_by_itself(self):
        found, variables = self.Layer().init_with_output(jax.random.key(0), self.inputs, SOME)
        grouped = self.inputs.astype(np.float64).reshape(8, 8, 3, 2)
        mean, variance = (f(grouped, axis=(1, 3), keepdims=True) for f in (np.mean, np.var))
        wanted = (grouped - mean) / np.sqrt(variance + 1e-5)
        np.testing.assert_allclose(found, wanted.reshape(self.inputs.shape), atol=1e-4)
        assert set(variables) == {"params"}

    def test_half_precision_keeps_its_dtype(self):
        inputs = jnp.asarray(self.inputs, jnp.float16)
        found, variables = self.Layer().init_with_output(jax.random.key(0), inputs, SOME)
        assert found.dtype == jnp.float16
        assert np.isfinite(found).all()
        assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}

    def test_may_start_as_nothing(self):
        variables = self.Layer().init(jax.random.key(0), self.inputs, SOME, zero=True)
        assert (variables["params"]["norm"]["scale"] == 0).all()
