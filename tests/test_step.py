import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import IMAGE_SHAPE, split

from jaxtrain import data, models, optimizer, state
from jaxtrain.config.schema import (
    DataConfig,
    MlpConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
)
from jaxtrain.feed import Feed
from jaxtrain.parallel.mesh import data_mesh, on_mesh, replicated
from jaxtrain.step import Fixed, Resident, gather, normalise, train_step
from jaxtrain.tasks import CLASSIFICATION

BATCH = 16
TRAIN = split(37, name="train")


@functools.cache
def fixed(report_steps: int = 0) -> Fixed:
    model = models.build(ModelConfig(mlp=MlpConfig(hidden_sizes=(12,), dropout=0.3)), 10)
    params = state.abstract_model(model, IMAGE_SHAPE, 10)["params"]
    schedule = optimizer.build_schedule(
        ScheduleConfig(name="cosine"), 0.01, optimizer.Span(20, 0, Fraction(37, BATCH))
    )
    transformation = optimizer.build(OptimizerConfig(), schedule, params)
    return Fixed(model, CLASSIFICATION, transformation, schedule, report_steps)


def new_state(mesh) -> state.TrainState:
    create = functools.partial(
        state.create, fixed().model, fixed().optimizer, image_shape=IMAGE_SHAPE
    )
    return jax.jit(create, out_shardings=replicated(mesh))(seed=np.uint32(5))


def trained(devices: int, cache: str, steps: int, report_steps: int = 0):
    """The state after some steps, and every step's metrics on the host."""
    mesh = data_mesh(jax.devices()[:devices])
    feed = Feed(TRAIN, DataConfig(cache=cache), mesh)
    current = new_state(mesh)
    step = functools.partial(train_step, fixed(report_steps))
    abstract = on_mesh(jax.eval_shape(lambda: current), mesh)
    update = feed.compile(step, abstract, BATCH, donate=True)
    history = []
    for batch in feed.batches(data.Sampler(TRAIN.size, BATCH, 5).batches(steps)):
        current, metrics = update(current, batch)
        history.append(jax.device_get(metrics))
    return jax.device_get(current), history


def leaves_equal(a, b) -> None:
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(one, other)


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
    found = normalise(jnp.array([0, 51, 255], jnp.uint8))
    np.testing.assert_allclose(found, [0, 0.2, 1], rtol=1e-6)
    assert normalise(jnp.array([3.5])).tolist() == [3.5]
