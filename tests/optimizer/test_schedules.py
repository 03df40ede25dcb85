import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain import optimizer
from jaxtrain.config.schema import ScheduleConfig
from jaxtrain.errors import UsageError

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
