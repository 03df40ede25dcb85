"""`jaxtrain train`: the whole run, from a request to its result."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from concurrent import futures
from typing import Any

from jaxtrain import announce, checkpoint, files, provenance, setup, workdir
from jaxtrain.checkpoint import Best, Checkpoints
from jaxtrain.config import TrainRequest, flatten
from jaxtrain.data.examples import is_image
from jaxtrain.errors import CheckpointError
from jaxtrain.evaluation import Evaluator
from jaxtrain.feed import Feed
from jaxtrain.parallel.compile import Compiled
from jaxtrain.parallel.in_flight import InFlight
from jaxtrain.parallel.mesh import check_processes, within_memory
from jaxtrain.parallel.processes import peers
from jaxtrain.parallel.processes.peers import Peers
from jaxtrain.parallel.stop import SECOND_SIGNAL_STATUS, StopRequest
from jaxtrain.report import (
    QuietReporter,
    Reporter,
    preparing,
    sweep_picture,
)
from jaxtrain.session import Metrics, Record, SentCall, Session
from jaxtrain.setup import Run
from jaxtrain.state import TrainState, weights
from jaxtrain.tasks import CLASSIFICATION

# How long a second signal waits for the terminal to be left clean.
LAST_WORDS_SECONDS = 1.0


def train(request: TrainRequest) -> dict[str, Any] | None:
    """Trains, or goes on training, alone or together with other processes.

    Returns:
        The content of `result.json`; None on all processes but the first.

    Raises:
        JaxtrainError: see `jaxtrain.errors` for what each kind means.
    """
    config = request.config
    with (
        StopRequest() as stop,
        peers.start(request.processes, config.parallel.peer_timeout_seconds) as everybody,
    ):
        check_processes(everybody.count)
        with preparing(shown=everybody.is_first) as progress:
            run = setup.build(config, progress=progress)
            run.dataset.prepare(progress)
        known = {f"the {role} split's checksum": x for role, x in run.fingerprints.items()}
        known["the classes"] = repr(run.dataset.class_names)
        known |= {
            f"--{flag}": str(getattr(request, flag)) for flag in ("workdir", "fresh", "extend")
        }
        everybody.agree("the processes", provenance.identity(config, known))
        path = files.place(everybody.broadcast("workdir", _choose_path(request, everybody)))
        if config.model.init_from is not None:
            steps = checkpoint.agreed_steps(path / workdir.CHECKPOINTS)
            if not steps:
                run.check_given()
        with (
            _opened(request, run, path, everybody) as opened,
            _reporting(run, opened, everybody) as reporter,
        ):
            stop.hold(
                on_first=lambda: reporter.message("stopping soon; a second signal stops now"),
                on_second=lambda: _leave_at_once(reporter, everybody),
            )
            everybody.before_exit(reporter.close)
            reporter.message(f"workdir  {path}")
            if everybody.is_first:
                opened.write_left_out(run.dataset.left_out)
            stored = everybody.broadcast("result", json.dumps(opened.finished()))
            result: Metrics | None = json.loads(stored)
            if result is None:
                with within_memory():
                    result = _run(run, opened, reporter, stop, everybody)
                if everybody.is_first:
                    _draw_sweep(run, opened)
                    opened.write_result(result)
            else:
                if everybody.is_first and not opened.has_sweep():
                    _draw_sweep(run, opened)
                reporter.message(
                    "this run is finished; --extend makes it longer, --fresh starts another"
                )
            announce.say_what_next(run, path, result, reporter)
    return result if everybody.is_first else None


def _choose_path(request: TrainRequest, everybody: Peers) -> str | None:
    """The run's folder, which the first process chooses for all."""
    if not everybody.is_first:
        return None
    path = request.workdir or workdir.default_path(request.config_name, request.config)
    path = files.place(path)
    return str(workdir.fresh_path(path) if request.fresh else path)


@contextlib.contextmanager
def _opened(
    request: TrainRequest, run: Run, path: files.AnyPath, everybody: Peers
) -> Iterator[workdir.Workdir]:
    """The run's folder, which the first process holds for all."""
    data = workdir.DataIdentity(run.dataset.class_names, run.fingerprints)
    with contextlib.ExitStack() as stack:
        opened = workdir.Workdir(path, extended=False, previous=None)
        if everybody.is_first:
            taking = workdir.open_run(
                path,
                request.config,
                data,
                extend=request.extend,
                say=lambda text: print(text, file=sys.stderr, flush=True),  # noqa: T201
            )
            opened = stack.enter_context(taking)
        everybody.barrier("workdir")
        everybody.prove_shared(path)
        yield opened


def _reporting(run: Run, opened: workdir.Workdir, everybody: Peers) -> Reporter:
    if not everybody.is_first:
        return QuietReporter()
    return Reporter(
        opened.metrics_path,
        opened.tensorboard_dir if run.config.report.tensorboard else None,
        total_steps=run.plan.total_steps,
        batch_size=run.config.train.batch_size,
        noun="images" if is_image(run.image_shape) else "examples",
        replicas=run.differences,
        main=run.config.train.export_replica,
    )


def _draw_sweep(run: Run, opened: workdir.Workdir) -> None:
    """Draws what came of a sweep, as far as its log tells."""
    picture = sweep_picture(opened.metrics_path, run.variant.key) if run.is_sweep else None
    if picture is not None:
        opened.write_sweep(picture)


def _leave_at_once(reporter: Reporter, everybody: Peers) -> None:
    """What is to be done before a second signal ends this process, and with it all others."""
    everybody.abort(SECOND_SIGNAL_STATUS, "left at a second signal, without saving")
    # What it waits for, such as a terminal that takes nothing, must not keep this process.
    peers.call_within(LAST_WORDS_SECONDS, [reporter.close])


def _run(
    run: Run, opened: workdir.Workdir, reporter: Reporter, stop: StopRequest, everybody: Peers
) -> Metrics:
    """Restores or creates the state, compiles, trains and sums up."""
    config = run.config
    began = time.perf_counter()
    announce.introduce(run, reporter, everybody)
    with futures.ThreadPoolExecutor() as pool, reporter.paused("compile"):
        # XLA compiles outside Python's lock, so these three take the time of the longest, which
        # begins first.
        feed = Feed(run.dataset.train, config.data, run.devices, config.parallel.mode)
        compiled = pool.submit(_compile_update, run, feed)
        restored = pool.submit(_restore_or_create, run, opened, reporter)
        evaluator = pool.submit(_compile_evaluator, run).result()
        update = compiled.result()
        state, record = restored.result()
    if everybody.count > 1:
        everybody.agree("the weights", {"checksum": str(checkpoint.checksums(state.model))})
    first = int(state.step)
    announce.say_length(run, opened, reporter, first)
    reporter.start(first, evaluates=record.owes_evaluation)
    with Checkpoints(opened.checkpoints_dir, config.checkpoint.keep) as checkpoints:
        session = Session(run, opened, evaluator, checkpoints, reporter, record, began, stop)
        _evaluate_late(session, state)
        calls = feed.calls(
            run.batches(),
            run.plan.calls(first, run.steps_per_call),
            run.steps_per_call,
        )
        state = _loop(session, update, state, calls)
        with reporter.paused("save"):
            checkpoints.wait()
        result = session.result(state)
    reporter.hparams(flatten(config), *session.evaluated)
    return result


def _loop(
    session: Session, update: Compiled, state: TrainState, calls: Iterator[tuple[range, Any]]
) -> TrainState:
    """Trains to the last step, a few steps in one call.

    At an event the order is: step, report, evaluate, save, stop. A report comes before the save,
    so that a checkpoint never knows more than metrics.jsonl, whenever the process is killed.
    """
    in_flight = InFlight(session.finish)
    for steps, batches in calls:
        in_flight.make_room()
        (state, metrics), stops = update(state, batches, session.stop.requested)
        step = steps[-1]
        events = session.run.plan.events(step)
        in_flight.add(SentCall(steps, metrics, stops, events.report))
        session.reporter.tick(step)
        if not (events.evaluate or events.save or session.stopping):
            continue
        in_flight.drain()
        is_best = events.evaluate and session.evaluate(state)
        if events.save or is_best or session.stopping:
            session.save(state)
        if session.stopping and (not events.stop or session.record.owes_evaluation):
            raise session.stopped(step)
    return state


def _evaluate_late(session: Session, state: TrainState) -> None:
    """Does the evaluation in which the last start was stopped."""
    if not session.record.owes_evaluation:
        return
    is_best = session.evaluate(state)
    if session.stopping:
        raise session.stopped(int(state.step))
    if is_best:  # it was saved without the evaluation that it is to be kept for
        session.save(state, overwrite=True)


def _compile_update(run: Run, feed: Feed) -> Compiled:
    return feed.compile_calls(run.step, run.abstract, run.rows, run.steps_per_call)


def _compile_evaluator(run: Run) -> Evaluator:
    return Evaluator(
        model=run.fixed.model,
        normalise=run.fixed.normalise,
        task=CLASSIFICATION,
        split=run.dataset.eval,
        config=run.config.data,
        batch_size=run.config.eval.batch_size,
        mesh=run.devices,
        variables=weights(run.abstract.model, "raw"),
        replicas=None if run.replicas is None else run.replicas.count,
        unroll=run.fixed.unroll,
        flip_average=run.config.eval.flip_average,
    )


def _restore_or_create(
    run: Run, opened: workdir.Workdir, reporter: Reporter
) -> tuple[TrainState, Record]:
    """This run's newest whole checkpoint, else a new state from the seed.

    Raises:
        CheckpointError: no checkpoint can be read.
    """
    directory = opened.checkpoints_dir
    state = checkpoint.restore_newest(directory, run.abstract, reporter.message)
    if state is None:
        notes = run.check_given()
        if run.config.model.init_from is not None:
            notes = (f"from {run.config.model.init_from}", *notes)
        for note in notes:
            reporter.message(f"weights  {note}")
        return run.create_state(), Record()
    meta = checkpoint.read_meta(directory, int(state.step))
    try:
        best, record = meta["best"], Record(**meta["record"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"checkpoint {directory / str(state.step)}: its meta is damaged ({error}); move that "
            "folder away to go on from the one before"
        ) from error
    if best is not None and best["metric"] == run.config.checkpoint.best_metric:
        record.best = Best(**best)
    return state, record
