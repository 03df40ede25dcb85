"""Epochs to steps, and the step of every event, in pure integers.

Steps count finished updates, 1 to N. Batches run on across an epoch's end, so epoch k ends at the
first step s with s x batch_size >= k x examples.
"""

import dataclasses
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from jaxtrain.config.schema import (
    CheckpointConfig,
    EvalConfig,
    ReportConfig,
    ScheduleConfig,
    TrainConfig,
)
from jaxtrain.errors import UsageError


class Events(NamedTuple):
    """What happens after a step."""

    report: bool
    evaluate: bool
    save: bool
    stop: bool


class Every(NamedTuple):
    """An event's interval, `numerator / denominator` steps, in lowest terms.

    It fires at the first step s with s >= k x interval, for k = 1, 2, ...
    """

    numerator: int
    denominator: int

    def fires(self, step: int) -> bool:
        """Whether some k x interval lies in (step - 1, step]."""
        last = step * self.denominator
        return last // self.numerator > (last - self.denominator) // self.numerator


@dataclasses.dataclass(frozen=True)
class Plan:
    """The steps of one run.

    Attributes:
        total_steps: N, the number of updates.
        batch_size: examples in the global batch.
        examples: number of training examples.
        report_every: steps between reports; None: only the last step.
        evaluate_every: steps between evaluations; None: only the last step.
        save_every: steps between checkpoints; None: only the last step.
    """

    total_steps: int
    batch_size: int
    examples: int
    report_every: Every | None
    evaluate_every: Every | None
    save_every: Every | None

    @property
    def steps_per_epoch(self) -> Fraction:
        """Examples / batch size, exactly."""
        return Fraction(self.examples, self.batch_size)

    def events(self, step: int) -> Events:
        """What happens after `step`, 1 to N; everything does after the last."""
        if step == self.total_steps:
            return Events(report=True, evaluate=True, save=True, stop=True)
        return Events(
            report=self.report_every is not None and self.report_every.fires(step),
            evaluate=self.evaluate_every is not None and self.evaluate_every.fires(step),
            save=self.save_every is not None and self.save_every.fires(step),
            stop=False,
        )

    def calls(self, done: int, most: int) -> Iterator[range]:
        """The steps after `done` in runs of at most `most`, each of which ends where events are.

        Args:
            done: finished updates.
            most: 1 or more.
        """
        for step in range(done + 1, self.total_steps + 1):
            if step - done == most or any(self.events(step)):
                yield range(done + 1, step + 1)
                done = step

    def count(self, every: Every | None) -> int:
        """How many of the steps 1 to N have an event of this interval; the last step has."""
        if every is None:
            return 1
        fired = min(self.total_steps * every.denominator // every.numerator, self.total_steps)
        return fired + (not every.fires(self.total_steps))

    def epoch_end(self, epochs: float) -> int:
        """The first step with `epochs` passes over the examples behind it, or more."""
        return math.ceil(_exact(epochs) * self.steps_per_epoch)

    def epoch(self, step: int) -> float:
        """Passes over the examples after `step`."""
        return step * self.batch_size / self.examples

    def warmup_steps(self, schedule: ScheduleConfig) -> int:
        """Steps of warm-up, from steps or epochs.

        With N total steps it is N - 2 or less, so that the decay, which ends exactly at update N,
        spans one step or more after the warm-up; runs of 1 or 2 steps have none.

        Raises:
            UsageError: the warm-up is longer than that.
        """
        if schedule.warmup_epochs is None:
            steps = schedule.warmup_steps or 0
            key, asked = "warmup_steps", f"schedule.warmup_steps={steps}"
        else:
            steps = self.epoch_end(schedule.warmup_epochs)
            key = "warmup_epochs"
            asked = f"schedule.warmup_epochs={schedule.warmup_epochs:g} ({steps:,} steps)"
        limit = max(self.total_steps - 2, 0)
        if steps > limit:
            raise UsageError(
                f"{asked} does not fit the {self.total_steps:,} steps of the run, which leave "
                f"{limit:,} for warm-up (all but two); set schedule.{key}=0, or less of it, or "
                "train longer"
            )
        return steps


def build(
    train: TrainConfig,
    eval: EvalConfig,  # noqa: A002 - the section's name
    checkpoint: CheckpointConfig,
    report: ReportConfig,
    examples: int,
) -> Plan:
    """The plan of a run.

    Args:
        train: batch size, and length in epochs or steps.
        eval: interval of evaluations.
        checkpoint: interval of checkpoints.
        report: interval of reports.
        examples: number of training examples, 1 or more.

    Raises:
        UsageError: more steps than an int32 counter holds.
    """
    epoch = Fraction(examples, train.batch_size)
    total_steps = train.steps
    if total_steps is None:
        assert train.epochs is not None, "the config has exactly one of the two"
        total_steps = math.ceil(_exact(train.epochs) * epoch)
        if total_steps >= 2**31:
            raise UsageError(
                f"train.epochs={train.epochs:g} makes {total_steps} steps; they must be below "
                f"{2**31}, so train fewer epochs or use a larger train.batch_size"
            )
    return Plan(
        total_steps=total_steps,
        batch_size=train.batch_size,
        examples=examples,
        report_every=_interval(report.every_steps, None, epoch),
        evaluate_every=_interval(eval.every_steps, eval.every_epochs, epoch),
        save_every=_interval(checkpoint.every_steps, checkpoint.every_epochs, epoch),
    )


def nearest_divisible(batch_size: int, devices: int) -> tuple[int, int]:
    """The nearest batch sizes, (at most, at least) `batch_size`, that divide over `devices`.

    Both are `batch_size` if it divides, and both are `devices` if it is smaller than that.
    """
    lower = max(batch_size // devices, 1) * devices
    return lower, max(-(-batch_size // devices) * devices, lower)


def _interval(steps: int | None, epochs: float | None, epoch: Fraction) -> Every | None:
    """The interval of at most one of the two, or an epoch if neither is set; None if it is 0."""
    in_epochs = _exact(1 if epochs is None else epochs) * epoch
    interval = in_epochs if steps is None else Fraction(steps)
    return Every(interval.numerator, interval.denominator) if interval else None


def _exact(value: float) -> Fraction:
    """The number that a person wrote: 0.1 is a tenth, not the nearest double."""
    return Fraction(str(value))
