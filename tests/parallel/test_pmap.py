"""Data parallel under `pmap`: the same run as under `jit`, and as on one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import IMAGE_SHAPE
from steps import close, fixed, leaves_equal, trained


@pytest.mark.parametrize("devices", [1, 4, 8])
@pytest.mark.parametrize("cache", ["device", "memory"])
def test_the_run_is_that_of_one_device(devices, cache):
    alone, history = trained(1, "device", 8)
    mapped, others = trained(devices, cache, 8, mode="pmap")
    close(alone, mapped)
    close(history, others)


def test_several_steps_a_call_are_the_same_bits():
    one, history = trained(4, "device", 7, mode="pmap", report_steps=5)
    called, others = trained(4, "device", 7, mode="pmap", report_steps=5, most=4, lengths=(4, 1, 2))
    leaves_equal(one, called)
    leaves_equal(history[-1], others[-1])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_batch_statistics_are_those_of_the_whole_batch(accumulate):
    options = {"name": "convolving", "operations": "flip|noise(0.1)"}
    alone, history = trained(1, "device", 3, accumulate=accumulate, **options)
    mapped, others = trained(8, "device", 3, accumulate=accumulate, mode="pmap", **options)
    close(alone.collections, mapped.collections, rtol=1e-3, atol=1e-4)
    close([m.interval.loss for m in history], [m.interval.loss for m in others], rtol=1e-3)


def test_one_step_has_the_gradients_of_the_whole_batch():
    """Before rounding has grown: to the last digits."""
    options = {"name": "convolving", "operations": "flip"}
    (alone, _), (mapped, _) = (
        trained(devices, "device", 1, mode=mode, **options)
        for devices, mode in ((1, "jit"), (8, "pmap"))
    )
    close(alone.collections, mapped.collections)
    # The first of Adam's moments is a tenth of the gradient.
    close(alone.opt_state, mapped.opt_state, rtol=1e-4, atol=1e-6)
    close(alone.interval, mapped.interval)


def test_float16_skips_the_same_updates():
    alone, _ = trained(1, "device", 4, dtype="float16")
    mapped, _ = trained(8, "device", 4, mode="pmap", dtype="float16")
    assert alone.loss_scale == mapped.loss_scale
    close(alone.params, mapped.params, rtol=1e-2, atol=1e-3)


def test_flax_layers_work_with_the_statistics_of_each_devices_rows():
    """Under `jit` they see the whole batch, under `pmap` what a device has."""
    options = {"name": "plain", "operations": ""}
    one, history = trained(1, "device", 1, **options)
    spread, spread_history = trained(4, "device", 1, **options)
    close(one.collections, spread.collections)
    close(history, spread_history)
    mapped, others = trained(4, "device", 1, mode="pmap", **options)
    statistics = [state.collections["batch_stats"]["norm"] for state in (one, mapped)]
    # The mean over devices of their rows' means is that of all rows; that of variances is not.
    close(*(each["mean"] for each in statistics))
    assert (statistics[1]["var"] < statistics[0]["var"]).any()
    assert others[0].interval.loss == pytest.approx(history[0].interval.loss, rel=0.5)


def test_flax_dropout_differs_between_devices():
    """Of devices that see the same rows: each folds its index into the key."""
    same = fixed(name="plain", operations="")
    image = np.random.default_rng(0).random((4, *IMAGE_SHAPE), np.float32)
    params, collections = same.model.init(jax.random.key(0), image)

    def logits(image, axis):
        row, key = jnp.zeros(4, jnp.int32), jax.random.key(1)
        return same.model.apply(params, collections, image, row=row, key=key, axis=axis)[0]

    mapped = jax.pmap(lambda image: logits(image, "data"), axis_name="data")
    one, other = mapped(np.stack([image, image]))
    assert np.abs(one - other).max() > 1e-3
