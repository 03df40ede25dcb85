import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import data_mesh
from steps import BATCH, TRAIN, close, fixed, leaves_equal, new_state, trained

from jaxtrain import data, optimizer
from jaxtrain.config.schema import (
    DataConfig,
    OptimizerConfig,
)
from jaxtrain.data import Statistics
from jaxtrain.errors import UsageError
from jaxtrain.step import Normalise, Resident, gather, normalisation, train_step


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


@pytest.mark.parametrize(("devices", "parts"), [(1, 2), (1, 16), (2, 8), (8, 2)])
def test_a_batch_in_parts_is_the_whole_batch(devices, parts):
    whole, history = trained(1, "device", 8)
    split_up, others = trained(devices, "device", 8, accumulate=parts)
    close(whole, split_up)
    close(history, others)
    assert int(split_up.step) == 8


def test_a_part_of_a_convolving_step_is_the_same_in_a_loop():
    unrolled = functools.partial(train_step, fixed(name="convolving", accumulate=4))
    looped = functools.partial(
        train_step, dataclasses.replace(fixed(name="convolving", accumulate=4), unroll=False)
    )
    current = new_state(data_mesh(jax.devices()[:1]), fixed(name="convolving"))
    batch = batch_of(range(BATCH))
    close(*(jax.jit(step)(current, batch) for step in (unrolled, looped)), atol=1e-4)


@pytest.mark.parametrize("devices", [2, 8])
def test_batch_statistics_are_those_of_the_parts_whatever_the_devices(devices):
    options = {"name": "convolving", "operations": "flip"}
    alone, history = trained(1, "device", 3, accumulate=2, **options)
    spread, others = trained(devices, "device", 3, accumulate=2, **options)
    close(alone.collections, spread.collections, rtol=1e-3, atol=1e-4)
    close([m.interval.loss for m in history], [m.interval.loss for m in others], rtol=1e-3)
    whole, _ = trained(1, "device", 1, **options)
    parts, _ = trained(1, "device", 1, accumulate=2, **options)
    # The first layer's inputs do not depend on other layers' statistics, nor do their means.
    name = "stem_norm"
    np.testing.assert_allclose(
        whole.collections["batch_stats"][name]["mean"],
        parts.collections["batch_stats"][name]["mean"],
        rtol=1e-4,
        atol=1e-6,
    )


def test_parts_without_examples_leave_no_trace():
    one = fixed(name="convolving", operations="")
    several = fixed(name="convolving", operations="", accumulate=2)
    current = new_state(data_mesh(jax.devices()[:1]), one)
    # Rows 1, 3, 5, the second part, are masked.
    padded = jax.jit(functools.partial(train_step, several))(
        current, batch_of([3, -1, 1, -1, 4, -1])
    )
    whole = jax.jit(functools.partial(train_step, one))(current, batch_of([3, -1, 1, -1, 4, -1]))
    close(padded, whole, rtol=1e-4, atol=1e-5)
    nothing, _ = jax.jit(functools.partial(train_step, several))(current, batch_of([-1] * 4))
    leaves_equal(nothing.collections, current.collections)


class Counting(nn.Module):
    """A network with collections of every kind of dtype."""

    @nn.compact
    def __call__(self, image, *, train):
        mean = self.variable("stats", "mean", lambda: jnp.zeros((), jnp.bfloat16))
        calls = self.variable("stats", "calls", lambda: jnp.zeros((), jnp.int32))
        if train:
            mean.value = image.mean().astype(jnp.bfloat16)
            calls.value += 1
        return nn.Dense(10)(image.reshape(image.shape[0], -1))


def test_collections_keep_their_dtypes():
    several = fixed(operations="", accumulate=4)
    model = dataclasses.replace(several.model, module=Counting(), takes=frozenset({"train"}))
    same = dataclasses.replace(
        several, model=model, optimizer=optimizer.build(OptimizerConfig(), {"a": jnp.zeros(1)})
    )
    current = new_state(data_mesh(jax.devices()[:1]), same)
    batch = batch_of(range(BATCH))
    after, _ = jax.jit(functools.partial(train_step, same))(current, batch)
    found = after.collections["stats"]
    assert (found["mean"].dtype, found["calls"].dtype) == (jnp.bfloat16, jnp.int32)
    assert int(found["calls"]) == 1
    expected = float(same.normalise(batch.image).mean())
    assert float(found["mean"]) == pytest.approx(expected, rel=0.01)


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


def batch_of(indices) -> data.Batch:
    resident = Resident(jnp.asarray(TRAIN.images), jnp.asarray(TRAIN.labels))
    return gather(resident, jnp.asarray(indices, jnp.int32))


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


def test_normalise_maps_bytes_to_the_unit_interval():
    found = Normalise((0.0,), (1.0,))(jnp.array([0, 51, 255], jnp.uint8).reshape(1, 1, 3, 1))
    np.testing.assert_allclose(found.ravel(), [0, 0.2, 1], rtol=1e-6)
    assert Normalise((0.0,), (1.0,))(jnp.full((1, 1, 1, 1), 3.5)).item() == 3.5


def test_normalise_takes_one_number_or_one_a_channel():
    pixel = jnp.array([0, 51, 255], jnp.uint8).reshape(1, 1, 1, 3)
    config = DataConfig(mean=(0.1, 0.2, 0.3), std=(0.5,))
    found = normalisation(config, (1, 1, 3), unknown)(pixel)
    np.testing.assert_allclose(found.ravel(), [-0.2, 0, 1.4], rtol=1e-6, atol=1e-7)
    with pytest.raises(UsageError, match=r"holds 3 numbers, but images have 1"):
        normalisation(config, (1, 1, 1), unknown)


def unknown():
    raise AssertionError("statistics are not needed")


def test_features_stay_as_they_are_unless_the_config_says_otherwise():
    features = jnp.array([[300.0, -1.0]])
    assert normalisation(DataConfig(), (2,), unknown)(features).tolist() == [[300.0, -1.0]]
    config = DataConfig(mean=(100.0, 1.0), std=(2.0,))
    assert normalisation(config, (2,), unknown)(features).tolist() == [[100.0, -1.0]]
    with pytest.raises(UsageError, match=r"holds 2 numbers, but examples have 3 features; give "):
        normalisation(config, (3,), unknown)


def test_standardised_features_have_the_statistics_of_the_training_examples():
    config = DataConfig(standardize=True)
    found = normalisation(config, (2,), lambda: Statistics((100.0, -1.0), (50.0, 1.0)))
    assert found(jnp.array([[300.0, -1.0]])).tolist() == [[4.0, 0.0]]
    with pytest.raises(UsageError, match="is for features, but the examples are images of 1x1x3"):
        normalisation(config, (1, 1, 3), unknown)
    with pytest.raises(UsageError, match=r"takes the place of data\.mean=\(1\.0,\) and data\.std"):
        normalisation(DataConfig(standardize=True, mean=(1.0,)), (2,), unknown)
