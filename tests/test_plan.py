import dataclasses
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrain import plan
from jaxtrain.config.schema import (
    CheckpointConfig,
    EvalConfig,
    ReportConfig,
    ScheduleConfig,
    TrainConfig,
)
from jaxtrain.errors import UsageError

SETTINGS = settings(deadline=None, max_examples=200)

# What a person writes: a few decimals.
decimals = st.decimals("0.001", "20", places=3).map(float)
every_epochs = st.none() | st.just(0.0) | decimals
every_steps = st.none() | st.integers(0, 70)


def build(examples=60000, *, batch_size=128, epochs=None, steps=None, **every):
    """A plan; `evaluate`, `save`: keys of their section; `report`: steps."""
    return plan.build(
        TrainConfig(batch_size=batch_size, epochs=epochs, steps=steps),
        EvalConfig(**every.get("evaluate", {})),
        CheckpointConfig(**every.get("save", {})),
        ReportConfig(every_steps=every.get("report", 0)),
        examples,
    )


def first_step(passes, examples, batch_size):
    """The first step s with s x batch_size >= passes x examples, by counting."""
    step = 0
    while step * batch_size < passes * examples:
        step += 1
    return step


def test_mnist():
    made = build(epochs=10.0, evaluate={"every_epochs": 1.0})
    assert made.total_steps == 4688
    assert made.steps_per_epoch == Fraction(1875, 4)
    assert [made.epoch_end(k) for k in range(4)] == [0, 469, 938, 1407]
    assert made.epoch(469) == 469 * 128 / 60000
    evaluated = [step for step in range(1, 4689) if made.events(step).evaluate]
    assert evaluated == [469, 938, 1407, 1875, 2344, 2813, 3282, 3750, 4219, 4688]


@pytest.mark.parametrize(
    ("epochs", "examples", "batch_size", "steps"),
    [
        (1.0, 60000, 128, 469),
        (0.1, 1000, 1, 100),  # 0.1 as a double is a little more than a tenth
        (0.7, 10, 1, 7),
        (1.1, 10, 1, 11),
        (1e-3, 1000, 1, 1),
        (1e-9, 1000, 128, 1),
        (2, 7, 7, 2),
        (3.0, 1, 1, 3),
    ],
)
def test_total_steps(epochs, examples, batch_size, steps):
    assert build(examples, batch_size=batch_size, epochs=epochs).total_steps == steps


@SETTINGS
@given(st.data(), st.integers(1, 30))
def test_calls_hold_every_step_once_and_end_at_events(draw, most):
    intervals = {name: {"every_steps": draw.draw(every_steps)} for name in ("evaluate", "save")}
    made = build(100, batch_size=10, steps=60, report=draw.draw(st.integers(0, 70)), **intervals)
    done = draw.draw(st.integers(0, 60))
    calls = list(made.calls(done, most))
    assert [step for call in calls for step in call] == list(range(done + 1, 61))
    assert all(0 < len(call) <= most for call in calls)
    assert not any(any(made.events(step)) for call in calls for step in call[:-1])
    # No call is shorter than it must be.
    assert all(len(call) == most or any(made.events(call[-1])) for call in calls)


def test_steps_need_no_arithmetic():
    assert build(7, batch_size=5, steps=123).total_steps == 123


@SETTINGS
@given(st.integers(1, 200), st.integers(1, 50), decimals)
def test_epoch_end_is_the_first_step_that_reaches_it(examples, batch_size, epochs):
    made = build(examples, batch_size=batch_size, epochs=epochs)
    exact = Fraction(str(epochs))
    if exact * examples / batch_size < 2000:
        assert made.epoch_end(epochs) == first_step(exact, examples, batch_size)
    assert made.total_steps == made.epoch_end(epochs)
    assert made.epoch(made.total_steps) >= epochs or math.isclose(
        made.epoch(made.total_steps), epochs
    )


def fires(every_steps, every_epochs, examples, batch_size, total_steps):
    """Steps of an event by brute force."""
    steps = {total_steps}
    if every_steps:
        steps |= {step for step in range(1, total_steps + 1) if step % every_steps == 0}
    if every_epochs:
        multiple = interval = Fraction(str(every_epochs))
        for step in range(1, total_steps + 1):
            if step * batch_size >= multiple * examples:
                steps.add(step)
                while step * batch_size >= multiple * examples:
                    multiple += interval
    return sorted(steps)


@SETTINGS
@given(
    examples=st.integers(1, 90),
    batch_size=st.integers(1, 90),
    total_steps=st.integers(1, 60),
    report=st.integers(0, 70),
    steps=every_steps,
    epochs=every_epochs,
)
def test_events_equal_brute_force(*, examples, batch_size, total_steps, report, steps, epochs):
    made = build(
        examples,
        batch_size=batch_size,
        steps=total_steps,
        report=report,
        evaluate={"every_steps": steps},
        save={"every_epochs": epochs},
    )
    events = {step: made.events(step) for step in range(1, total_steps + 1)}

    def said(name):
        return [step for step, event in events.items() if getattr(event, name)]

    assert said("report") == fires(report, None, examples, batch_size, total_steps)
    each_epoch = 1.0 if steps is None else None
    assert said("evaluate") == fires(steps, each_epoch, examples, batch_size, total_steps)
    epochs = 1.0 if epochs is None else epochs
    assert said("save") == fires(None, epochs, examples, batch_size, total_steps)
    assert said("stop") == [total_steps]


@pytest.mark.parametrize("every", [{"every_steps": 0}, {"every_epochs": 0.0}, {"every_steps": 99}])
def test_the_last_step_always_has_every_event(every):
    made = build(100, batch_size=10, steps=12, evaluate=every, save=every)
    for step in range(1, 12):
        assert made.events(step) == (False, False, False, False)
    assert made.events(12) == (True, True, True, True)
    assert plan.Events._fields == ("report", "evaluate", "save", "stop")


def test_many_epochs_a_step_fire_once_a_step():
    made = build(4, batch_size=4, steps=5, save={"every_epochs": 0.25})
    assert all(made.events(step).save for step in range(1, 6))


def test_far_steps_stay_exact():
    made = build(3, batch_size=1, steps=10**18, save={"every_epochs": 0.1})
    assert made.save_every == (3, 10)
    made = build(30, batch_size=7, steps=10**18, save={"every_epochs": 0.1})
    step = made.epoch_end(10.0**14)
    assert step == math.ceil(Fraction(3 * 10**15, 7))
    assert made.events(step).save


def test_a_plan_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        build(steps=3).total_steps = 4


def test_warmup_in_steps_and_epochs():
    made = build(epochs=10.0)
    assert made.warmup_steps(ScheduleConfig()) == 0
    assert made.warmup_steps(ScheduleConfig(warmup_steps=0)) == 0
    assert made.warmup_steps(ScheduleConfig(warmup_steps=4686)) == 4686
    assert made.warmup_steps(ScheduleConfig(warmup_epochs=0.5)) == 235
    assert made.warmup_steps(ScheduleConfig(warmup_epochs=2)) == 938


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ({"warmup_steps": 500}, "schedule.warmup_steps=500 does not fit the 469 steps of the run"),
        (
            {"warmup_steps": 468},
            "which leave 467 for warm-up (all but two); set schedule.warmup_steps=0, or less of",
        ),
        ({"warmup_epochs": 1.5}, "schedule.warmup_epochs=1.5 (704 steps) does not fit the 469"),
        ({"warmup_epochs": 1.5}, "; set schedule.warmup_epochs=0, or less of it, or train longer"),
    ],
)
def test_warmup_longer_than_the_run(schedule, said):
    made = build(epochs=1.0)
    with pytest.raises(UsageError) as error:
        made.warmup_steps(ScheduleConfig(**schedule))
    assert said in str(error.value)


@pytest.mark.parametrize(("total_steps", "limit"), [(1, 0), (2, 0), (3, 1), (10, 8)])
def test_the_decay_spans_a_step(total_steps, limit):
    made = build(steps=total_steps)
    assert made.warmup_steps(ScheduleConfig(warmup_steps=limit)) == limit
    with pytest.raises(UsageError, match=f"leave {limit} for warm-up"):
        made.warmup_steps(ScheduleConfig(warmup_steps=limit + 1))


@pytest.mark.parametrize(
    ("batch_size", "devices", "nearest"),
    [(100, 8, (96, 104)), (96, 8, (96, 96)), (3, 8, (8, 8)), (9, 8, (8, 16)), (7, 1, (7, 7))],
)
def test_nearest_divisible(batch_size, devices, nearest):
    assert plan.nearest_divisible(batch_size, devices) == nearest


@SETTINGS
@given(st.integers(1, 500), st.integers(1, 64))
def test_nearest_divisible_by_brute_force(batch_size, devices):
    dividing = range(devices, batch_size + devices + 1, devices)
    lower, upper = plan.nearest_divisible(batch_size, devices)
    assert lower == max((size for size in dividing if size <= batch_size), default=devices)
    assert upper == min(size for size in dividing if size >= batch_size)
