"""`jaxtrain eval`: a run's checkpoint scored on one split, every example once."""

import contextlib
import dataclasses
import io
import sys
import time
from typing import Any

import numpy as np

from jaxtrain import checkpoint, data, files, predictor, provenance, workdir
from jaxtrain.config import Config, EvalRequest, apply_overrides
from jaxtrain.config.schema import DataConfig, ParallelConfig
from jaxtrain.errors import CheckpointError, LayoutError, UsageError
from jaxtrain.evaluation import Evaluator, Results
from jaxtrain.parallel.mesh import check_processes, within_memory
from jaxtrain.parallel.processes import peers
from jaxtrain.parallel.processes.peers import Peers
from jaxtrain.predictor import Predictor
from jaxtrain.report import Console, open_console


def evaluate(request: EvalRequest) -> dict[str, Any] | None:
    """Evaluates, alone or together with other processes.

    The metrics are also written to the workdir, if it can be.

    Returns:
        The metrics; None on all processes but the first.

    Raises:
        JaxtrainError: see `jaxtrain.errors` for what each kind means.
    """
    began = time.perf_counter()
    stored = workdir.read_run(request.workdir)
    config = apply_overrides(stored.config, request.overrides)
    with (
        peers.start(request.processes, config.parallel.peer_timeout_seconds) as everybody,
        contextlib.closing(_console(everybody)) as console,
    ):
        everybody.before_exit(console.close)
        check_processes(everybody.count)
        asked = {"--checkpoint": request.checkpoint, "--split": request.split}
        everybody.agree("the processes", provenance.identity(config, asked))
        directory, model = _load(stored.path / "checkpoints", request, config.parallel, console)
        step = model.step
        split = _open_split(model, config.data, _split_name(request, config))
        known = {"the checkpoint's step": str(step), "the split's checksum": split.fingerprint}
        everybody.agree("the processes", known)
        console.message(f"evaluating step {step} on {split.size:,} examples of {split.name!r}")
        with within_memory():
            results, metrics = _results(model, split, config, console)
        console.evaluation(step, split.name, metrics)
        if request.has_other_data:
            size = "x".join(map(str, split.image_shape))
            console.message(f"on other data than the run's, brought to {size}: {split.origin}")
        result = {
            "status": "evaluated",
            "step": step,
            "eval": {"split": split.name, **metrics},
            "seconds": round(time.perf_counter() - began, 3),
            "workdir": str(stored.path),
        }
        if everybody.is_first:
            full = {**result, "classes": _by_class(model, split, results)}
            full["data"] = {"source": config.data.source, "fingerprint": split.fingerprint}
            warning = _keep(stored.path, directory, full, split, request)
            if warning is not None:
                console.message(warning)
    return result if everybody.is_first else None


def _keep(
    path: files.AnyPath,
    directory: files.AnyPath,
    result: dict[str, Any],
    split: data.Split,
    request: EvalRequest,
) -> str | None:
    """Writes the metrics into the workdir, if the checkpoint is its own; says why not, if so."""
    step = result["step"]
    if directory.resolve() != (path / "checkpoints").resolve():
        return f"not kept in {path}: {directory / str(step)} is not its own"
    suffix = f"-{split.fingerprint}" if request.has_other_data else ""
    return workdir.try_write_eval(path, f"{split.name}-{step}{suffix}.json", result)


def _console(everybody: Peers) -> Console:
    """What a person sees; nothing of all processes but the first."""
    return open_console(sys.stderr if everybody.is_first else io.StringIO(), time.perf_counter)


def _results(
    model: Predictor, split: data.Split, config: Config, console: Console
) -> tuple[Results, dict[str, Any]]:
    """The exact pass, per example and summed up."""
    evaluator = Evaluator(
        model=model.model,
        normalise=model.normalise,
        task=model.task,
        split=split,
        config=config.data,
        batch_size=config.eval.batch_size,
        mesh=model.mesh,
        variables=model.abstract,
    )
    console.pause("evaluate")
    results = evaluator.results(
        model.variables, lambda done, total: console.batches("evaluate", done, total)
    )
    console.unpause()
    assert results is not None, "nobody can ask it to stop"
    return results, evaluator.summary(results)


def _open_split(model: Predictor, config: DataConfig, name: str) -> data.Split:
    """The examples, brought to the size of those that the model was trained on.

    Raises:
        UsageError: they cannot be, or are of other classes.
    """
    trained = model.config.data
    sized = dataclasses.replace(
        config, image_size=model.image_shape[:2], eval_crop=trained.eval_crop
    )
    split = data.open_split(sized, name, model.class_names)
    if tuple(split.image_shape) != model.image_shape:
        raise UsageError(
            f"split {split.name!r} has images of {split.image_shape[2]} channels, but the model "
            f"was trained on {model.image_shape[2]}; give data like what it was trained on"
        )
    return split


def _split_name(request: EvalRequest, config: Config) -> str:
    """`--split`, else `data.eval_split` where the command line sets it, else what training used."""
    if request.split is not None:
        return request.split
    if "data.eval_split" in request.overrides:
        return config.data.eval_split
    return data.eval_split_name(config.data)


def _load(
    checkpoints: files.AnyPath, request: EvalRequest, parallel: ParallelConfig, console: Console
) -> tuple[files.AnyPath, Predictor]:
    """The model of a checkpoint, and the folder of that; looks again if a live run removed it.

    A pod's run is evaluated on a laptop: unless the command line says how the model is to lie on
    the devices, the run's own way gives way to the default one where it does not fit.
    """
    chosen = {"parallel.mesh", "parallel.rules"} & set(request.overrides)
    while True:
        directory, step = _locate(checkpoints, request.checkpoint)
        try:
            return directory, predictor.load(directory, step, parallel)
        except CheckpointError:
            if step in checkpoint.agreed_steps(directory):
                raise
        except LayoutError as error:
            default = ParallelConfig()
            if chosen or (parallel.mesh, parallel.rules) == (default.mesh, default.rules):
                raise
            why = str(error).partition(";")[0]
            console.message(f"evaluating with {default.mesh}, {default.rules}: the run's {why}")
            parallel = dataclasses.replace(parallel, mesh=default.mesh, rules=default.rules)


def _locate(checkpoints: files.AnyPath, which: str) -> tuple[files.AnyPath, int]:
    """The folder and the step of `last`, `best`, a step's number or a checkpoint's path."""
    if checkpoint.is_step_name(which) or which in ("last", "best"):
        return checkpoints, checkpoint.resolve_step(checkpoints, which)
    path = files.place(which)
    if not path.is_dir() or not checkpoint.is_step_name(path.name):
        raise UsageError(
            f"--checkpoint={which} is neither last, best, a step nor the folder of a checkpoint "
            f"(as in {checkpoints / '100'})"
        )
    return path.parent, checkpoint.resolve_step(path.parent, path.name)


def _by_class(model: Predictor, split: data.Split, results: Results) -> dict[str, Any]:
    """Count and accuracy of each class that has examples."""
    classes = len(model.class_names)
    counts = np.bincount(split.labels, minlength=classes)
    correct = np.bincount(split.labels[results["correct"]], minlength=classes)
    return {
        name: {"count": int(count), "accuracy": int(right) / int(count)}
        for name, count, right in zip(model.class_names, counts, correct, strict=True)
        if count
    }
