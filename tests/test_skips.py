"""Updates that are skipped because something is not finite."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import data_mesh
from steps import BATCH, LOSS, TRAIN, close, fixed, leaves_equal, new_state, trained

from jaxtrain import data
from jaxtrain.config.schema import OptimizerConfig
from jaxtrain.skips import Skips
from jaxtrain.state import TrainState
from jaxtrain.step import Resident, gather, train_step

PLAIN = OptimizerConfig(learning_rate=0.01)
SKIPPING = dataclasses.replace(PLAIN, skip_nonfinite=6)
# A class of few examples, whose losses below are not finite.
BAD = 8
STEPS = 12
IS_BAD = [
    bool((TRAIN.labels[data.Sampler(TRAIN.size, BATCH, 5).indices(step)] == BAD).any())
    for step in range(1, STEPS + 1)
]


def spoiled(logits, label):
    return jnp.where(label == BAD, jnp.inf, LOSS(logits, label))


def bent(logits, label):
    """Finite, but its gradient is not: that of a root at 0."""
    zero = jnp.where(label == BAD, 0 * logits[:, 0] ** 2, 1.0)
    return LOSS(logits, label) + jnp.where(label == BAD, jnp.sqrt(zero), 0.0)


OPTIONS = {"updates": SKIPPING, "operations": "flip", "report_steps": 3}


def batch_at(step: int) -> data.Batch:
    resident = Resident(jnp.asarray(TRAIN.images), jnp.asarray(TRAIN.labels))
    indices = data.Sampler(TRAIN.size, BATCH, 5).indices(step)
    return gather(resident, jnp.asarray(indices, jnp.int32))


def test_the_data_is_what_these_tests_need():
    assert "".join("x" if bad else "." for bad in IS_BAD) == "x.xx.xxxxxx."


@pytest.mark.parametrize("loss", [spoiled, bent])
@pytest.mark.parametrize("name", ["mlp", "convolving"])
def test_it_is_as_if_there_had_been_no_such_update(loss, name):
    """But for the step: bit for bit what the other updates make alone."""
    found, history = trained(1, "device", STEPS, loss=loss, name=name, **OPTIONS)
    same = fixed(updates=PLAIN, operations="flip", name=name)
    step = jax.jit(functools.partial(train_step, same))
    current = new_state(data_mesh(jax.devices()[:1]), same)
    losses = []
    for number, bad in enumerate(IS_BAD, start=1):
        if bad:
            current = current.replace(step=jnp.int32(number))
            continue
        before = current.interval
        current, metrics = step(current, batch_at(number))
        losses.append(float(metrics.interval.loss) - float(before.loss))
    close(current.model, found.model, rtol=1e-6, atol=1e-7)
    close(current.opt_state, found.opt_state, rtol=1e-6, atol=1e-7)
    assert int(found.step) == STEPS
    assert [int(m.skips.total) for m in history] == np.cumsum(IS_BAD).tolist()
    assert [int(m.skips.in_a_row) for m in history] == [1, 0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 0]
    intervals = [history[index] for index in (2, 5, 8, 11)]
    assert [int(m.skips.interval) for m in intervals] == [2, 2, 3, 2]
    assert [int(m.interval.count) for m in intervals] == [BATCH, BATCH, 0, BATCH]
    found_losses = [float(m.interval.loss) for m in intervals]
    np.testing.assert_allclose(found_losses, [losses[0], losses[1], 0.0, losses[2]], rtol=1e-5)
    assert not any(int(m.interval.bad_step) for m in history)
    assert intervals[2].interval.compute() == {"loss": None, "accuracy": None}


@pytest.mark.parametrize(
    "keys",
    [
        {"devices": 8},
        {"devices": 8, "mode": "pmap"},
        {"devices": 1, "accumulate": 2},
        {"devices": 2, "accumulate": 4, "mode": "pmap"},
        {"devices": 4, "mesh": "data=2,fsdp=2", "rules": "fsdp"},
        {"devices": 1, "most": 5, "lengths": (5, 2, 5)},
    ],
    ids=str,
)
def test_the_same_updates_are_skipped_however_it_runs(keys):
    keys = dict(keys)
    alone, history = trained(1, "device", STEPS, loss=spoiled, **OPTIONS)
    other, others = trained(keys.pop("devices"), "device", STEPS, loss=spoiled, **OPTIONS, **keys)
    close(alone.params, other.params, rtol=1e-4, atol=1e-5)
    leaves_equal(alone.skips, other.skips)
    leaves_equal(history[-1].interval.count, others[-1].interval.count)
    assert int(alone.skips.total) == 9


@pytest.mark.parametrize(("limit", "named"), [(1, 4), (2, 8), (5, 11), (6, 0)])
def test_one_more_in_a_row_than_the_limit_is_named(limit, named):
    """And not done either, so that what is there stays whole."""
    updates = dataclasses.replace(PLAIN, skip_nonfinite=limit)
    found, history = trained(1, "device", STEPS, loss=spoiled, updates=updates, operations="flip")
    assert int(history[-1].interval.bad_step) == named
    assert int(found.skips.total) == 9
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found.params))


def test_without_a_limit_the_first_is_named_and_the_state_has_no_more_in_it():
    found, history = trained(1, "device", 3, loss=spoiled, updates=PLAIN, operations="flip")
    assert int(history[-1].interval.bad_step) == 1
    assert found.skips is None
    assert "skips" not in found.training


def test_they_travel_with_the_training_state():
    found, _ = trained(1, "device", STEPS, loss=spoiled, **OPTIONS)
    leaves_equal(TrainState.join(found.model, found.training), found)
    assert int(found.training["skips"].total) == 9


def test_float16_counts_what_no_scale_mends_alone():
    """A gradient that overflows is the scale's to mend; a loss is not."""
    options = {"updates": SKIPPING, "operations": "", "dtype": "float16"}
    same = fixed(**options)
    step = jax.jit(functools.partial(train_step, same))
    current = new_state(data_mesh(jax.devices()[:1]), same)
    large = current.replace(loss_scale=current.loss_scale.replace(scale=jnp.float32(2.0**40)))
    after, metrics = step(large, batch_at(1))
    assert float(after.loss_scale.scale) == 2.0**39
    assert int(metrics.skips.total) == 0
    assert int(metrics.interval.count) == BATCH
    found, history = trained(1, "device", 3, loss=spoiled, **options)
    assert int(found.skips.total) == 2
    assert int(history[-1].interval.count) == BATCH


def test_counting():
    skips = Skips.create()
    bad = jnp.array(True)
    for skipped, first in ((bad, True), (bad, False), (~bad, False), (bad, True)):
        skips = skips.after(skipped, first=first)
    assert (int(skips.in_a_row), int(skips.interval), int(skips.total)) == (1, 1, 3)
