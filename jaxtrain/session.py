"""One start of a run: what is done at its events, and what the run knows of itself."""

import dataclasses
import shlex
import time
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from jaxtrain import checkpoint, provenance, workdir
from jaxtrain.checkpoint import Best, Checkpoints
from jaxtrain.errors import NonFiniteError, Stopped
from jaxtrain.evaluation import Evaluator, summaries
from jaxtrain.parallel.stop import StopRequest
from jaxtrain.report import BatchProgress, Reporter, TrainReport, summed_up
from jaxtrain.setup import Run
from jaxtrain.state import TrainState, weights
from jaxtrain.step import StepMetrics

Metrics = dict[str, Any]


@dataclasses.dataclass
class Record:
    """What a run knows of itself beside the weights; it travels in every checkpoint's meta.

    Attributes:
        trained: the last training report, of the run's model.
        evaluated: the evaluation of `evaluated_step`, likewise.
        evaluated_step: 0 before the first evaluation.
        best: the best evaluation so far, where `checkpoint.best_metric` asks for it.
        seconds: time spent on this run by earlier starts.
        each: where it has replicas, both of each, as `train` and `eval`.
        owes_evaluation: whether it was stopped in the evaluation of the step that is saved, which
            is to be done first when it goes on.
    """

    trained: Metrics | None = None
    evaluated: Metrics | None = None
    evaluated_step: int = 0
    best: Best | None = None
    seconds: float = 0.0
    each: dict[str, list[Metrics]] | None = None
    owes_evaluation: bool = False


class SentCall(NamedTuple):
    """A call in flight.

    Attributes:
        steps: its steps.
        metrics: the last one's, on the devices.
        stops: whether some process was asked to stop, on the devices.
        reports: whether the last step is reported.
    """

    steps: range
    metrics: StepMetrics
    stops: jax.Array
    reports: bool


@dataclasses.dataclass
class Session:
    """One start of a run.

    Attributes:
        run: the checked run.
        opened: its folder.
        evaluator: the pass over the evaluation split.
        checkpoints: where states go.
        reporter: where numbers go.
        record: what the run knows of itself so far.
        began: when this start began, by `time.perf_counter`.
        stop: whether this process was asked to stop.
        stopping: whether all processes are to stop now: it is true after the same call, and in
            the same evaluation, on each.
    """

    run: Run
    opened: workdir.Workdir
    evaluator: Evaluator
    checkpoints: Checkpoints
    reporter: Reporter
    record: Record
    began: float
    stop: StopRequest
    stopping: bool = False

    def finish(self, sent: SentCall) -> None:
        """Waits for a call, and writes the interval that it ends, if it does.

        Raises:
            NonFiniteError: the loss of a step of this interval was not finite.
            CheckpointError: another run has the folder now.
        """
        stops, bad_step = jax.device_get((sent.stops, sent.metrics.interval.bad_step))
        self.stopping = self.stopping or bool(stops)
        self._check(np.atleast_1d(bad_step))
        if sent.reports:
            self.opened.check_held()
            each = [_report(one) for one in self.run.unstacked(jax.device_get(sent.metrics))]
            means = [{"loss": one.loss, "accuracy": one.accuracy} for one in each]
            self.record.trained = self._kept("train", means)
            self.reporter.train(sent.steps[-1], *each)

    @property
    def evaluated(self) -> list[Metrics]:
        """The numbers of the last evaluation, of each replica."""
        record = self.record
        return [record.evaluated or {}] if record.each is None else record.each["eval"]

    def _kept(self, what: str, each: list[Metrics]) -> Metrics:
        """Keeps the numbers of all replicas in the record; returns those of the run's model."""
        if len(each) > 1:
            self.record.each = {**(self.record.each or {}), what: each}
        return each[self.run.config.train.export_replica]

    def _check(self, bad_steps: NDArray[np.int32]) -> None:
        """Ends the run if there was a step with a loss that is not finite, and not to be skipped.

        Args:
            bad_steps: for each replica the first such step; 0 if there was none.

        Raises:
            NonFiniteError: names it.
        """
        if not bad_steps.any():
            return
        self.checkpoints.wait()  # or the step that is being written would not be named
        steps = checkpoint.list_steps(self.checkpoints.directory)
        replica = int(bad_steps.nonzero()[0][0])
        variant = self.run.variants[replica]
        config = variant.config
        limit = config.optimizer.skip_nonfinite
        gradient = " or a gradient" if config.model.dtype == "float16" or limit else ""
        of = f" of the replica with {variant}" if len(bad_steps) > 1 else ""
        after = f", after {limit} skipped in a row" if limit else ""
        kept = f"the last checkpoint is step {steps[-1]}" if steps else "nothing was saved yet"
        raise NonFiniteError(
            f"the loss{gradient}{of} is NaN or infinite at step {bad_steps[replica]}{after}; "
            f"{kept}; lower optimizer.learning_rate={config.optimizer.learning_rate:g} "
            "or set optimizer.clip_norm"
        )

    def evaluate(self, state: TrainState) -> bool:
        """Evaluates and records; returns whether this is the best so far, where that is asked.

        If it is to stop before the end, nothing is recorded and `stopping` is set.

        Raises:
            NonFiniteError: some outputs are not finite.
        """
        step = int(state.step)
        with self.reporter.paused("evaluate") as tick:
            each = self._metrics(state, tick)
        record = self.record
        record.owes_evaluation = each is None
        if each is None:
            self.stopping = True
            return False
        self.reporter.eval(step, self.evaluator.split.name, *each)
        metrics = record.evaluated = self._kept("eval", each)
        record.evaluated_step = step
        name = self.run.config.checkpoint.best_metric
        if name is None or metrics[name] is None:
            return False
        if record.best is not None and not record.best.beaten_by(metrics[name]):
            return False
        record.best = Best(step, name, metrics[name])
        return True

    def _metrics(self, state: TrainState, tick: BatchProgress) -> list[Metrics] | None:
        """The numbers of the weights that count; and beside them those of the others, if any.

        Returns:
            Those of each replica; None if it is to stop before the end.
        """
        model, which = state.model, self.run.config.eval.weights
        each = self._metrics_of(weights(model, which), tick)
        if "ema" not in model or each is None:
            return each
        which, other = ("raw", "ema") if which == "raw" else ("ema", "raw")
        beside = self._metrics_of(weights(model, other), tick)
        if beside is None:
            return None
        return [
            {
                **metrics,
                "weights": which,
                f"{other}_loss": others["loss"],
                f"{other}_accuracy": others["accuracy"],
            }
            for metrics, others in zip(each, beside, strict=True)
        ]

    def _metrics_of(self, variables: Any, tick: BatchProgress) -> list[Metrics] | None:
        every = self.evaluator.results(variables, tick, lambda: self.stop.requested)
        if every is None:
            return None
        return summaries(self.evaluator.summary, self.run.variants, every)

    def save(self, state: TrainState, *, overwrite: bool = False) -> None:
        """Starts to save the state, with everything that the run knows of itself.

        Args:
            state: the state after some step.
            overwrite: if that step is saved, replace what it says of the run.

        Raises:
            NonFiniteError, CheckpointError: as for `Checkpoints.save`.
        """
        record = self.record
        known = dataclasses.asdict(record) | {"seconds": self.seconds}
        standardizes = self.run.config.data.standardize
        described = provenance.describe(
            self.run.config,
            self.run.dataset.class_names,
            self.run.dataset.eval.image_shape,
            self.run.fingerprints,
            dataclasses.asdict(self.run.fixed.normalise) if standardizes else None,
        )
        meta = {**described, "best": known.pop("best"), "record": known}
        self.reporter.flush()
        with self.reporter.paused("save"):
            self.opened.publish()
            self.checkpoints.save(state, meta, overwrite=overwrite)

    def stopped(self, step: int) -> Stopped:
        """The end of a run that was asked to stop, once its last save is on disk.

        Raises:
            CheckpointError: it could not be written.
        """
        with self.reporter.paused("save"):
            self.checkpoints.wait()
        return Stopped(
            f"stopped after step {step} of {self.run.plan.total_steps}, which is saved; go on "
            f"with: jaxtrain train --workdir={shlex.quote(str(self.opened.path))}"
        )

    @property
    def seconds(self) -> float:
        """Time spent on this run by all its starts."""
        return self.record.seconds + time.perf_counter() - self.began

    def result(self, state: TrainState) -> Metrics:
        """The content of `result.json`."""
        record = self.record
        best = record.best
        skips = self._skips(state)
        return {
            "status": "finished",
            "step": int(state.step),
            "train": record.trained,
            "eval": {"split": self.evaluator.split.name, **(record.evaluated or {})},
            "best": None if best is None else dataclasses.asdict(best),
            **({} if skips is None else {"skipped": skips[self.run.config.train.export_replica]}),
            **({} if record.each is None else {"replicas": self._replicas(record.each, skips)}),
            "seconds": round(self.seconds, 3),
        }

    def _skips(self, state: TrainState) -> list[int] | None:
        """How many updates of each replica were skipped; None where none ever is."""
        if state.skips is None:
            return None
        totals: list[int] = np.atleast_1d(jax.device_get(state.skips.total)).tolist()
        return totals

    def _replicas(self, each: dict[str, list[Metrics]], skips: list[int] | None) -> Metrics:
        """The numbers of all replicas."""
        found = summed_up(self.run.differences, each)
        return found if skips is None else {**found, "skipped": {"values": skips}}


def _report(metrics: StepMetrics) -> TrainReport:
    """What one replica's metrics of a reported step say."""
    return TrainReport(
        **metrics.interval.compute(),
        learning_rate=float(metrics.learning_rate),
        skipped=None if metrics.skips is None else int(metrics.skips.interval),
    )
