"""The average of the weights: its formula, what it covers, and that it does not disturb."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from steps import MOMENTUM, close, fixed, leaves_equal, trained
from test_skips import IS_BAD, spoiled

from jaxtrain import ema
from jaxtrain.config.schema import OptimizerConfig
from jaxtrain.errors import UsageError
from jaxtrain.state import weights

DECAY = 0.8
OPTIONS = {"name": "convolving", "updates": MOMENTUM, "ema_decay": DECAY}


def test_the_formula():
    random = np.random.RandomState(0)
    average = expected = random.normal(size=5).astype(np.float32)
    for update in range(1, 40):
        new = random.normal(size=5).astype(np.float32)
        average = ema.after(average, new, 0.75, jnp.int32(update))
        decay = min(0.75, (1 + update) / (10 + update))
        expected = decay * expected.astype(np.float64) + (1 - decay) * new
        np.testing.assert_allclose(average, expected, rtol=2e-6, atol=1e-7)
    assert average.dtype == jnp.float32


def test_integers_are_taken_as_they_are_and_what_is_constant_stays():
    average = {"count": jnp.int32(3), "same": jnp.float32(0.1)}
    new = {"count": jnp.int32(7), "same": jnp.float32(0.1)}
    after = ema.after(average, new, 0.9, jnp.int32(5))
    assert int(after["count"]) == 7
    assert float(after["same"]) == float(new["same"])


def test_it_is_the_average_of_the_weights_after_each_update():
    """Parameters and batch statistics; what is trained is what it is without."""
    average = jax.device_get(trained(1, "device", 0, **OPTIONS)[0]).ema
    for steps in range(1, 5):
        state, _ = trained(1, "device", steps, **OPTIONS)
        new = {"params": state.params, "collections": state.collections}
        average = jax.device_get(ema.after(average, new, DECAY, jnp.int32(steps)))
        close(state.ema, average, rtol=1e-6, atol=1e-7)
    without, _ = trained(1, "device", 4, **{**OPTIONS, "ema_decay": None})
    leaves_equal(dataclasses.replace(state, ema=None), without)
    assert without.ema is None


@pytest.mark.parametrize(
    "options",
    [
        {"devices": 8},
        {"devices": 8, "mode": "pmap"},
        {"devices": 8, "mesh": "data=2,fsdp=4", "rules": "fsdp"},
        {"devices": 1, "cache": "memory"},
    ],
)
def test_on_other_layouts(options):
    expected, _ = trained(1, "device", 4, **OPTIONS)
    options = {"cache": "device", **options}
    found, _ = trained(options.pop("devices"), options.pop("cache"), 4, **options, **OPTIONS)
    close(found.ema, expected.ema)


def test_several_updates_in_one_call_are_the_same_bits():
    options = {"ema_decay": DECAY}
    one, _ = trained(1, "device", 6, **options)
    several, _ = trained(1, "device", 6, most=4, lengths=(4, 2), **options)
    leaves_equal(one.ema, several.ema)


def test_a_skipped_update_is_no_part_of_it():
    updates = OptimizerConfig(learning_rate=0.01, skip_nonfinite=6)
    options = {"updates": updates, "operations": "flip", "ema_decay": DECAY, "loss": spoiled}
    steps = IS_BAD.index(True) + 1
    before, _ = trained(1, "device", steps - 1, **options)
    after, _ = trained(1, "device", steps, **options)
    leaves_equal(before.ema, after.ema)


def test_which_weights_are_used():
    state, _ = trained(1, "device", 2, **OPTIONS)
    raw = {"params": state.params, "collections": state.collections}
    assert weights(state.model, "ema") is state.ema
    assert weights(state.model, None) is state.ema
    leaves_equal(weights(state.model, "raw"), raw)
    without = {name: state.model[name] for name in raw}
    leaves_equal(weights(without, None), raw)
    with pytest.raises(UsageError, match=r"eval.weights=ema needs an average"):
        weights(without, "ema")
    assert fixed(**OPTIONS).ema_decay == DECAY
