import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import data_mesh
from steps import BATCH, TRAIN, batch_of, close, fixed, leaves_equal, new_state, trained

from jaxtrain.step import train_step


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_initial_weights_are_the_same_on_any_devices(devices):
    leaves_equal(
        jax.device_get(new_state(data_mesh(jax.devices()[:devices]))),
        jax.device_get(new_state(data_mesh(jax.devices()[:1]))),
    )


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_devices_change_nothing_but_the_last_digits(devices):
    alone, history = trained(1, "device", 12)
    spread, other_history = trained(devices, "device", 12)
    for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(spread), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)
    losses = [m.interval.loss / m.interval.count for m in history]
    others = [m.interval.loss / m.interval.count for m in other_history]
    np.testing.assert_allclose(losses, others, rtol=2e-6)
    assert losses[0] > losses[-1]


def test_device_and_host_memory_train_the_same_bit_for_bit():
    for devices in (1, 8):
        leaves_equal(trained(devices, "device", 6), trained(devices, "memory", 6))


@pytest.mark.parametrize("devices", [1, 8])
def test_steps_have_the_same_bits_in_calls_of_any_length(devices):
    alone, history = trained(devices, "device", 7, report_steps=5)
    for most, lengths in ((4, (1,) * 7), (4, (4, 1, 2)), (7, (7,))):
        called, metrics = trained(devices, "device", 7, most=most, lengths=lengths, report_steps=5)
        leaves_equal(alone, called)
        leaves_equal(metrics[-1], history[-1])


def test_float16_trains_as_float32_does():
    exact, history = trained(1, "device", 12, operations="")
    half, others = trained(1, "device", 12, operations="", dtype="float16")
    assert half.params["head"]["kernel"].dtype == np.float32
    close(exact.params, half.params, rtol=0.1, atol=0.02)
    assert float(others[-1].interval.loss) == pytest.approx(
        float(history[-1].interval.loss), rel=0.01
    )
    assert 2.0**4 < float(half.loss_scale.scale) <= 2.0**16
    assert int(half.loss_scale.finite_steps) > 0


def test_an_update_that_overflows_float16_is_skipped():
    same = fixed(operations="", dtype="float16")
    step = jax.jit(functools.partial(train_step, same))
    current = new_state(data_mesh(jax.devices()[:1]), same)
    large = current.replace(loss_scale=current.loss_scale.replace(scale=jnp.float32(2.0**40)))
    skipped, metrics = step(large, batch_of([3, 1, 4, 5]))
    leaves_equal(skipped.params, current.params)
    leaves_equal(skipped.opt_state, current.opt_state)
    assert int(skipped.step) == 1
    assert float(skipped.loss_scale.scale) == 2.0**39
    assert bool(skipped.loss_scale.skipped)
    assert int(metrics.interval.bad_step) == 0
    # The next one is an ordinary update, with the rate of its own step.
    after, metrics = step(skipped.replace(loss_scale=current.loss_scale), batch_of([3, 1, 4, 5]))
    assert not bool(after.loss_scale.skipped)
    assert float(metrics.learning_rate) == pytest.approx(float(same.schedule(1)))


def test_gradients_that_no_scale_mends_stop_the_run():
    same = fixed(operations="", dtype="float16")
    current = new_state(data_mesh(jax.devices()[:1]), same)
    least = current.loss_scale.replace(scale=jnp.float32(1.0))
    kernel = current.params["head"]["kernel"]
    broken = dict(current.params, head={**current.params["head"], "kernel": kernel * 1e30})
    _, metrics = jax.jit(functools.partial(train_step, same))(
        current.replace(loss_scale=least, params=broken), batch_of([3, 1])
    )
    assert int(metrics.interval.bad_step) == 1


def test_an_interval_starts_again_after_a_report_step():
    _, history = trained(1, "device", 7, report_steps=3)
    assert [int(m.interval.count) // BATCH for m in history] == [1, 2, 3, 1, 2, 3, 1]
    _, whole = trained(1, "device", 7)
    assert [int(m.interval.count) // BATCH for m in whole] == [1, 2, 3, 4, 5, 6, 7]
    sums = [float(history[i].interval.loss) for i in (2, 5, 6)]
    assert sum(sums) == pytest.approx(float(whole[-1].interval.loss), rel=1e-6)


def test_the_reported_rate_is_that_of_the_update():
    _, history = trained(1, "device", 20)
    assert history[0].learning_rate == np.float32(0.01)
    assert history[-1].learning_rate == 0.0


def test_masked_rows_change_nothing():
    step = jax.jit(functools.partial(train_step, fixed()))
    current = new_state(data_mesh(jax.devices()[:1]))
    whole, metrics = step(current, batch_of([3, 1, 4]))
    padded, padded_metrics = step(current, batch_of([3, 1, 4, -1, -1]))
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(padded), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
    assert int(padded_metrics.interval.count) == int(metrics.interval.count) == 3


def test_the_first_step_with_a_bad_loss_is_named():
    step = jax.jit(functools.partial(train_step, fixed()))
    current = new_state(data_mesh(jax.devices()[:1]))
    batch = batch_of([0, 1])
    current, metrics = step(current, batch)
    assert int(metrics.interval.bad_step) == 0
    broken = current.replace(params=jax.tree.map(lambda x: x * jnp.nan, current.params))
    for _ in range(2):
        broken, metrics = step(broken, batch)
    assert int(metrics.interval.bad_step) == 2


def test_gather_masks_padding():
    batch = batch_of([5, -1])
    np.testing.assert_array_equal(batch.image[0], TRAIN.images[5])
    assert batch.mask.tolist() == [True, False]
    assert batch.row.tolist() == [0, 1]
