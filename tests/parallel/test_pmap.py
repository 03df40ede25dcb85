"""Data parallel under `pmap`: the same run as under `jit`, and as on one device."""

import pytest
from steps import close, leaves_equal, trained


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
