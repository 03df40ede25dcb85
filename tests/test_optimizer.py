import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxtrain import optimizer
from jaxtrain.config.schema import OptimizerConfig, ScheduleConfig
from jaxtrain.errors import UsageError

PARAMS = {"head": {"bias": jnp.array([1.0, 2.0]), "kernel": jnp.array([[3.0, 4.0]])}}
GRADS = {"head": {"bias": jnp.array([0.1, -0.2]), "kernel": jnp.array([[0.3, 0.4]])}}
PEAK = 0.5


def rates(config: ScheduleConfig, total: int, warmup: int, epoch: Fraction) -> np.ndarray:
    """The rate of every update, computed as the step does: compiled, on int32 counts."""
    schedule = optimizer.build_schedule(config, PEAK, optimizer.Span(total, warmup, epoch))
    jitted = jax.jit(lambda count: jnp.asarray(schedule(count), jnp.float32))
    return np.array([jitted(jnp.int32(s - 1)) for s in range(1, total + 1)])


def formula(name: str, u: int, decay: int, per_epoch: float) -> float:
    """The documented rate at u updates after warm-up, in float64."""
    return {
        "constant": PEAK,
        "cosine": PEAK * (0.1 + 0.9 * (1 + math.cos(math.pi * u / decay)) / 2),
        "linear": PEAK * (1 - 0.9 * u / decay),
        "exponential": PEAK * 0.95 ** (u / (5 * per_epoch)),
        "step": PEAK * 0.1 ** sum(u + 3 >= b * per_epoch for b in (3, 4.5)),
    }[name]


KEYS = {
    "constant": {},
    "cosine": {"end_factor": 0.1},
    "linear": {"end_factor": 0.1},
    "exponential": {"decay_rate": 0.95, "decay_epochs": 5.0},
    "step": {"decay_rate": 0.1, "boundaries": (3.0, 4.5)},
}


@pytest.mark.parametrize("name", sorted(optimizer.SCHEDULES))
def test_every_rate_is_the_formulas(name):
    total, warmup, epoch = 50, 3, Fraction(60, 7)
    found = rates(
        ScheduleConfig(name=name, warmup_steps=warmup, **KEYS[name]), total, warmup, epoch
    )
    expected = [PEAK * t / warmup for t in range(warmup)]
    decay = total - 1 - warmup
    expected += [formula(name, u, decay, float(epoch)) for u in range(decay + 1)]
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-8)


@pytest.mark.parametrize("name", ["cosine", "linear"])
@pytest.mark.parametrize(("total", "warmup"), [(2, 0), (3, 1), (469, 0), (4690, 200)])
def test_last_update_uses_the_end_value_exactly(name, total, warmup):
    found = rates(ScheduleConfig(name=name), total, warmup, Fraction(1))
    assert found[-1] == 0.0
    ended = rates(ScheduleConfig(name=name, end_factor=0.3), total, warmup, Fraction(1))
    assert ended[-1] == np.float32(PEAK * 0.3)
    assert found[warmup] == np.float32(PEAK)


def test_a_run_of_one_update_uses_the_peak():
    for name in ("cosine", "linear", "constant"):
        assert rates(ScheduleConfig(name=name), 1, 0, Fraction(1))[0] == np.float32(PEAK)


def test_the_classic_exponential():
    config = ScheduleConfig(name="exponential", decay_rate=0.95, decay_epochs=5.0)
    span = optimizer.Span(1000, 0, Fraction(10))
    schedule = optimizer.build_schedule(config, 1.0, span)
    for epoch in (0, 1, 5, 20):
        assert float(schedule(epoch * 10)) == pytest.approx(0.95 ** (epoch / 5), rel=1e-6)


def updates(**keys) -> dict:
    config = OptimizerConfig(learning_rate=0.1, **keys)
    transformation = optimizer.build(config, PARAMS)
    state = transformation.init(PARAMS)
    for _ in range(3):
        found, state = transformation.update(GRADS, state, PARAMS)
    return jax.tree.map(lambda update: -config.learning_rate * update, found)


def reference(transformation: optax.GradientTransformation) -> dict:
    state = transformation.init(PARAMS)
    for _ in range(3):
        found, state = transformation.update(GRADS, state, PARAMS)
    return found


MASK = {"head": {"bias": False, "kernel": True}}


@pytest.mark.parametrize(
    ("keys", "transformation"),
    [
        ({"name": "sgd"}, optax.sgd(0.1)),
        ({"name": "sgd", "momentum": 0.9}, optax.sgd(0.1, 0.9)),
        ({"name": "sgd", "momentum": 0.9, "nesterov": True}, optax.sgd(0.1, 0.9, nesterov=True)),
        ({"name": "adam"}, optax.adam(0.1)),
        ({"name": "adam", "b1": 0.5, "b2": 0.6, "eps": 0.01}, optax.adam(0.1, 0.5, 0.6, 0.01)),
        (
            {"name": "adamw", "weight_decay": 0.2},
            optax.adamw(0.1, weight_decay=0.2, mask=MASK),
        ),
        (
            {"name": "sgd", "weight_decay": 0.2, "momentum": 0.9},
            optax.chain(optax.add_decayed_weights(0.2, MASK), optax.sgd(0.1, 0.9)),
        ),
        (
            {"name": "adam", "weight_decay": 0.2, "decay_rules": ".*=0.5"},
            optax.chain(optax.add_decayed_weights(0.1), optax.adam(0.1)),
        ),
        (
            {"name": "sgd", "clip_norm": 0.1},
            optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1)),
        ),
    ],
)
def test_every_optimizer_is_optax(keys, transformation):
    for found, expected in zip(
        jax.tree.leaves(updates(**keys)), jax.tree.leaves(reference(transformation)), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"name": "adamm"}, "did you mean 'adam'"),
        ({"name": "adam", "momentum": 0.9}, "optimizer.momentum=0.9 is set, but adam"),
        ({"name": "adam", "nesterov": True}, "optimizer.nesterov=True is set"),
        ({"name": "sgd", "b1": 0.9}, "optimizer.b1=0.9 is set, but sgd"),
        ({"name": "sgd", "nesterov": True}, "needs optimizer.momentum"),
        ({"weight_decay": 0.1, "decay_rules": "w=1; .*=0"}, "'w' matches no parameter"),
    ],
)
def test_optimizer_refuses(keys, said):
    with pytest.raises(UsageError) as caught:
        optimizer.build(OptimizerConfig(**keys), PARAMS)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"name": "cosin"}, "choose one of constant, cosine"),
        ({"name": "constant", "end_factor": 0.1}, "schedule.end_factor=0.1 is set, but constant"),
        ({"name": "cosine", "decay_rate": 0.1}, "schedule.decay_rate=0.1 is set"),
        ({"name": "exponential", "decay_rate": 0.1}, "needs schedule.decay_epochs"),
        ({"name": "exponential", "decay_epochs": 1.0}, "needs schedule.decay_rate"),
        ({"name": "step", "decay_rate": 0.1}, "needs schedule.boundaries"),
        ({"name": "step", "decay_rate": 0.1, "boundaries": (5.0,)}, "epoch 5 ends at step 50"),
        ({"name": "step", "decay_rate": 0.1, "boundaries": (0.2,)}, "outside the 47 steps"),
        ({"name": "step", "decay_rate": 0.1, "boundaries": (1.0, 0.99)}, "same step twice"),
    ],
)
def test_schedule_refuses(keys, said):
    with pytest.raises(UsageError) as caught:
        optimizer.build_schedule(ScheduleConfig(**keys), PEAK, optimizer.Span(50, 3, Fraction(10)))
    assert said in str(caught.value)
