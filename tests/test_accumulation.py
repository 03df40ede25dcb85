import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import data_mesh
from steps import BATCH, batch_of, close, fixed, leaves_equal, new_state, trained

from jaxtrain import optimizer
from jaxtrain.config.schema import OptimizerConfig
from jaxtrain.step import train_step


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
