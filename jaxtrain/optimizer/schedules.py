"""Learning-rate schedules, by an explicit table."""

import dataclasses
import fractions
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax

from jaxtrain.config.choices import refuse_unread, unknown
from jaxtrain.config.schema import ScheduleConfig
from jaxtrain.errors import UsageError
from jaxtrain.optimizer.choice import Choice

Schedule = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Span:
    """What a schedule needs to know of the run.

    Attributes:
        total_steps: updates in the run, N.
        warmup_steps: updates of linear warm-up, W, at most N - 2 unless 0.
        steps_per_epoch: examples / batch size, exactly.
    """

    total_steps: int
    warmup_steps: int
    steps_per_epoch: fractions.Fraction

    @property
    def decay_steps(self) -> int:
        """Updates from the peak to the end value: N - 1 - W, so that update N uses the end value.

        At least 1, for a run of a single update.
        """
        return max(self.total_steps - 1 - self.warmup_steps, 1)


def _constant(config: ScheduleConfig, peak: float, span: Span) -> Schedule:
    return optax.constant_schedule(peak)


def _cosine(config: ScheduleConfig, peak: float, span: Span) -> Schedule:
    return _ending(
        optax.cosine_decay_schedule(peak, span.decay_steps, config.end_factor), config, peak, span
    )


def _linear(config: ScheduleConfig, peak: float, span: Span) -> Schedule:
    end = peak * config.end_factor
    return _ending(optax.linear_schedule(peak, end, span.decay_steps), config, peak, span)


def _ending(schedule: Schedule, config: ScheduleConfig, peak: float, span: Span) -> Schedule:
    """`schedule` with its end value exact: compiled float32 arithmetic can end below 0."""
    end = peak * config.end_factor if span.total_steps > 1 else peak
    return lambda count: jnp.where(count >= span.decay_steps, end, schedule(count))


def _exponential(config: ScheduleConfig, peak: float, span: Span) -> Schedule:
    rate = _needed(config, "decay_rate")
    steps = _needed(config, "decay_epochs") * float(span.steps_per_epoch)
    return optax.exponential_decay(peak, steps, rate)


def _step(config: ScheduleConfig, peak: float, span: Span) -> Schedule:
    rate = _needed(config, "decay_rate")
    if not config.boundaries:
        raise UsageError("schedule.name='step' needs schedule.boundaries, as in 30,60,80 (epochs)")
    ends = [math.ceil(fractions.Fraction(str(k)) * span.steps_per_epoch) for k in config.boundaries]
    for epoch, end in zip(config.boundaries, ends, strict=True):
        if not span.warmup_steps < end < span.total_steps:
            raise UsageError(
                f"schedule.boundaries: epoch {epoch:g} ends at step {end}, outside the "
                f"{span.total_steps - span.warmup_steps} steps from the end of warm-up "
                f"({span.warmup_steps}) to the end of the run ({span.total_steps}); drop it"
            )
    if len(set(ends)) < len(ends):
        raise UsageError(f"schedule.boundaries={config.boundaries} holds the same step twice")
    return optax.piecewise_constant_schedule(peak, {end - span.warmup_steps: rate for end in ends})


def _needed(config: ScheduleConfig, name: str) -> float:
    value = getattr(config, name)
    if value is None:
        raise UsageError(
            f"schedule.name={config.name!r} needs schedule.{name}; add --config.schedule.{name}=..."
        )
    return float(value)


SCHEDULES = {
    "constant": Choice(_constant),
    "cosine": Choice(_cosine, frozenset({"end_factor"})),
    "exponential": Choice(_exponential, frozenset({"decay_rate", "decay_epochs"})),
    "linear": Choice(_linear, frozenset({"end_factor"})),
    "step": Choice(_step, frozenset({"decay_rate", "boundaries"})),
}


def build_schedule(config: ScheduleConfig, peak: float, span: Span) -> Schedule:
    """Finished updates to learning rate: update s uses the value at s - 1.

    With W steps of warm-up and t = s - 1: peak * t / W for t < W. After that, with u = t - W,
    D = N - 1 - W and e the end factor:

        constant     peak
        cosine       peak * (e + (1 - e) * (1 + cos(pi * u / D)) / 2)  (Loshchilov, Hutter, 2017)
        linear       peak * (1 - (1 - e) * u / D)
        exponential  peak * decay_rate ** (u / (decay_epochs * steps per epoch))
        step         peak * decay_rate ** (boundaries whose epoch has ended by update t)

    Args:
        config: the `schedule` section.
        peak: the rate at the end of warm-up.
        span: the run's length.

    Raises:
        UsageError: an unknown name, a key that it does not read, or one that it needs.
    """
    if config.name not in SCHEDULES:
        raise unknown("schedule.name", config.name, SCHEDULES)
    choice = SCHEDULES[config.name]
    refuse_unread("schedule", config, {"name", "warmup_steps", "warmup_epochs"}, choice.reads)
    main: Schedule = choice.build(config, peak, span)
    if not span.warmup_steps:
        return main
    warmup = optax.linear_schedule(0.0, peak, span.warmup_steps)
    return optax.join_schedules([warmup, main], [span.warmup_steps])
