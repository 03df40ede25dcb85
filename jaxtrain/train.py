"""`jaxtrain train`: the whole run, from a request to its result."""

import collections
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import jax

from jaxtrain import checkpoint, setup, workdir
from jaxtrain.checkpoint import Best, Checkpoints
from jaxtrain.config import TrainRequest, flatten
from jaxtrain.errors import NonFiniteError, Stopped
from jaxtrain.evaluation import Evaluator
from jaxtrain.feed import Feed
from jaxtrain.parallel.compile import MAX_IN_FLIGHT
from jaxtrain.parallel.stop import StopRequest
from jaxtrain.report import Reporter
from jaxtrain.setup import Run
from jaxtrain.state import TrainState
from jaxtrain.step import StepMetrics, train_step

Metrics = dict[str, Any]
Update = Callable[[TrainState, Any], tuple[TrainState, StepMetrics]]


def train(request: TrainRequest) -> dict[str, Any]:
    """Trains, or goes on training, and returns the content of `result.json`.

    Raises:
        JaxtrainError: see `jaxtrain.errors` for what each kind means.
    """
    run = setup.build(request.config)
    path = request.workdir or workdir.default_path(request.config_name, request.config)
    path = workdir.fresh_path(path) if request.fresh else path
    data = workdir.DataIdentity(run.dataset.class_names, run.fingerprints)
    with workdir.open_run(path, request.config, data, extend=request.extend) as opened:
        reporter = Reporter(
            opened.metrics_path,
            opened.tensorboard_dir if run.config.report.tensorboard else None,
            total_steps=run.plan.total_steps,
            batch_size=run.config.train.batch_size,
        )
        with StopRequest(on_second=reporter.close) as stop, reporter:
            reporter.message(f"workdir  {path}")
            result = opened.finished()
            if result is None:
                result = _run(run, opened, reporter, stop)
                opened.write_result(result)
            else:
                reporter.message("this run is finished; --fresh starts another beside it")
            reporter.message(f"evaluate it:  jaxtrain eval --workdir={path}")
            reporter.message(f"see it:       tensorboard --logdir={path.parent}")
    return result


@dataclasses.dataclass
class _Record:
    """What a run knows of itself beside the weights; it travels in every checkpoint's meta.

    Attributes:
        trained: the last training report.
        evaluated: the evaluation of `evaluated_step`.
        evaluated_step: 0 before the first evaluation.
        best: the best evaluation so far, where `checkpoint.best_metric` asks for it.
        seconds: time spent on this run by earlier starts.
    """

    trained: Metrics | None = None
    evaluated: Metrics | None = None
    evaluated_step: int = 0
    best: Best | None = None
    seconds: float = 0.0


def _run(run: Run, opened: workdir.Workdir, reporter: Reporter, stop: StopRequest) -> Metrics:
    """Restores or creates the state, compiles, trains and sums up."""
    config = run.config
    began = time.perf_counter()
    with Checkpoints(
        opened.checkpoints_dir, config.checkpoint.keep, config.checkpoint.best_metric
    ) as checkpoints:
        _introduce(run, reporter)
        with futures.ThreadPoolExecutor() as pool, reporter.paused("compile"):
            # XLA compiles outside Python's lock, so these three take the time of the longest.
            restored = pool.submit(_restore_or_create, run, opened, reporter)
            feed = Feed(run.dataset.train, config.data, run.mesh)
            compiled = pool.submit(_compile_update, run, feed)
            evaluator = pool.submit(_compile_evaluator, run).result()
            update = compiled.result()
            state, record = restored.result()
        first = int(state.step)
        _say_length(run, opened, reporter, first)
        reporter.start(first)
        session = _Session(run, evaluator, checkpoints, reporter, record, began)
        batches = feed.batches(run.sampler.batches(run.plan.total_steps), first)
        state = _loop(session, stop, update, state, batches)
        with reporter.paused("save"):
            checkpoints.wait()
        result = session.result(state)
        reporter.hparams(flatten(config), result["eval"])
    return result


def _compile_update(run: Run, feed: Feed) -> Update:
    step = functools.partial(train_step, run.fixed)
    return feed.compile(step, run.abstract, run.config.train.batch_size, donate=True)


def _compile_evaluator(run: Run) -> Evaluator:
    return Evaluator(
        model=run.fixed.model,
        task=run.fixed.task,
        split=run.dataset.eval,
        config=run.config.data,
        batch_size=run.config.eval.batch_size,
        mesh=run.mesh,
        variables=run.abstract.model,
    )


def _introduce(run: Run, reporter: Reporter) -> None:
    """Says what is trained on what."""
    train, evaluated = run.dataset.train, run.dataset.eval
    parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(run.abstract.params))
    reporter.message(
        f"data     {run.config.data.source}: {train.size:,} {train.name}, {evaluated.size:,} "
        f"{evaluated.name}, {run.dataset.num_classes} classes"
    )
    reporter.message(
        f"model    {run.config.model.name}: {parameters:,} parameters, on {run.mesh.size} "
        f"{jax.devices()[0].platform} device{'s' if run.mesh.size > 1 else ''}"
    )


def _say_length(run: Run, opened: workdir.Workdir, reporter: Reporter, first: int) -> None:
    """Says how long it goes on, and what an extension does to the learning rate."""
    total = run.plan.total_steps
    go_on = f"going on from step {first:,} to {total:,}" if first else f"{total:,} steps"
    reporter.message(f"train    {go_on}, {run.plan.epoch(total):.4g} epochs")
    if opened.extended and opened.previous is not None:
        before = setup.build_plan(opened.previous, run.dataset.train.size)
        old_rate = float(setup.build_schedule(opened.previous, before)(first))
        reporter.message(
            f"extend   from {before.total_steps:,} to {total:,} steps; learning rate of step "
            f"{first + 1:,}: {old_rate:g} before, {float(run.fixed.schedule(first)):g} now"
        )


def _loop(
    session: "_Session",
    stop: StopRequest,
    update: Update,
    state: TrainState,
    batches: Iterator[Any],
) -> TrainState:
    """Trains to the last step.

    At an event the order is: step, report, evaluate, save, stop. A report comes before the save,
    so that a checkpoint never knows more than metrics.jsonl, whenever the process is killed.
    """
    in_flight = _InFlight(session.report)
    for step, batch in enumerate(batches, start=int(state.step) + 1):
        in_flight.make_room()
        state, metrics = update(state, batch)
        events = session.run.plan.events(step)
        in_flight.add(step, metrics, events.report)
        session.reporter.tick(step)
        if not (events.evaluate or events.save or stop.requested):
            continue
        in_flight.drain()
        is_best = events.evaluate and session.evaluate(state)
        if events.save or is_best or stop.requested:
            session.save(state)
        if stop.requested and not events.stop:
            raise Stopped(
                f"stopped after step {step} of {session.run.plan.total_steps}, which is saved; "
                "run the same command again to go on"
            )
    return state


class _InFlight:
    """Steps that were sent but not waited for, at most `MAX_IN_FLIGHT`.

    Waiting only for the oldest keeps the device busy, and a report is fetched that much later.
    """

    def __init__(self, report: Callable[[int, StepMetrics, bool], None]) -> None:
        self._report = report
        self._steps: collections.deque[tuple[int, StepMetrics, bool]] = collections.deque()

    def make_room(self) -> None:
        """Waits until another step may be sent."""
        while len(self._steps) >= MAX_IN_FLIGHT:
            self._finish()

    def add(self, step: int, metrics: StepMetrics, reports: bool) -> None:
        """Takes a step that was just sent; `reports` says whether its metrics are to be written."""
        self._steps.append((step, metrics, reports))

    def drain(self) -> None:
        """Waits for every step, and for the loss of the last one to be known finite."""
        while len(self._steps) > 1:
            self._finish()
        step, metrics, reports = self._steps.popleft()
        self._report(step, metrics, reports)

    def _finish(self) -> None:
        step, metrics, reports = self._steps.popleft()
        if reports:
            self._report(step, metrics, True)
        else:
            jax.block_until_ready(metrics.learning_rate)


@dataclasses.dataclass
class _Session:
    """One start of a run: what happens at its events.

    Attributes:
        run: the checked run.
        evaluator: the pass over the evaluation split.
        checkpoints: where states go.
        reporter: where numbers go.
        record: what the run knows of itself so far.
        began: when this start began, by `time.perf_counter`.
    """

    run: Run
    evaluator: Evaluator
    checkpoints: Checkpoints
    reporter: Reporter
    record: _Record
    began: float

    def report(self, step: int, metrics: StepMetrics, write: bool) -> None:
        """Checks a step's loss, and writes the interval that it ends.

        Raises:
            NonFiniteError: the loss of a step of this interval was not finite.
        """
        interval, learning_rate = jax.device_get(metrics)
        if interval.bad_step:
            self.checkpoints.wait()  # or the step that is being written would not be named
            steps = checkpoint.list_steps(self.checkpoints.directory)
            kept = f"the last checkpoint is step {steps[-1]}" if steps else "nothing was saved yet"
            raise NonFiniteError(
                f"the loss is NaN or infinite at step {interval.bad_step}; {kept}; lower "
                f"optimizer.learning_rate={self.run.config.optimizer.learning_rate:g} "
                "or set optimizer.clip_norm"
            )
        if write:
            self.record.trained = interval.compute()
            self.reporter.train(step, **self.record.trained, learning_rate=float(learning_rate))

    def evaluate(self, state: TrainState) -> bool:
        """Evaluates and records; returns whether this is the best so far, where that is asked.

        Raises:
            NonFiniteError: some outputs are not finite.
        """
        step = int(state.step)
        with self.reporter.paused("evaluate") as tick:
            results = self.evaluator.results(state.model, tick)
        metrics = self.evaluator.summary(results)
        self.reporter.eval(step, self.evaluator.split.name, metrics)
        record = self.record
        record.evaluated, record.evaluated_step = metrics, step
        name = self.run.config.checkpoint.best_metric
        if name is None or (record.best is not None and not record.best.beaten_by(metrics[name])):
            return False
        record.best = Best(step, name, metrics[name])
        return True

    def save(self, state: TrainState) -> None:
        """Saves the state, with everything that the run knows of itself."""
        record = self.record
        fresh = record.evaluated if record.evaluated_step == int(state.step) else None
        known = dataclasses.asdict(record) | {"seconds": self.seconds}
        meta = {**setup.describe(self.run), "best": known.pop("best"), "record": known}
        self.reporter.flush()
        with self.reporter.paused("save"):
            self.checkpoints.save(state, meta, fresh)

    @property
    def seconds(self) -> float:
        """Time spent on this run by all its starts."""
        return self.record.seconds + time.perf_counter() - self.began

    def result(self, state: TrainState) -> Metrics:
        """The content of `result.json`."""
        best = self.record.best
        return {
            "status": "finished",
            "step": int(state.step),
            "train": self.record.trained,
            "eval": {"split": self.evaluator.split.name, **(self.record.evaluated or {})},
            "best": None if best is None else dataclasses.asdict(best),
            "seconds": round(self.seconds, 3),
        }


def _restore_or_create(
    run: Run, opened: workdir.Workdir, reporter: Reporter
) -> tuple[TrainState, _Record]:
    """This run's newest whole checkpoint, else a new state from the seed.

    Raises:
        CheckpointError: no checkpoint can be read.
    """
    directory = opened.checkpoints_dir
    state = checkpoint.restore_newest(directory, run.abstract, reporter.message)
    if state is None:
        return run.create_state(), _Record()
    meta = checkpoint.read_meta(directory, int(state.step))
    best, record = meta["best"], _Record(**meta["record"])
    if best is not None and best["metric"] == run.config.checkpoint.best_metric:
        record.best = Best(**best)
    return state, record
