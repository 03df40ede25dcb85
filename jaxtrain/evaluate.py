"""`jaxtrain eval`: a run's checkpoint scored on one split, every example once."""

import contextlib
import dataclasses
import io
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from jaxtrain import data, hardest, predictor, provenance, scored, workdir
from jaxtrain.config import Config, EvalRequest, apply_overrides, difference
from jaxtrain.data.examples import is_image, shape_text
from jaxtrain.errors import NonFiniteError, UsageError
from jaxtrain.evaluation import Results, place_of
from jaxtrain.parallel.mesh import check_processes, within_memory
from jaxtrain.parallel.processes import peers
from jaxtrain.parallel.processes.peers import Peers
from jaxtrain.predictor import Exported, Predictor, Restored
from jaxtrain.report import (
    Console,
    Row,
    check_rows_file,
    open_console,
    open_rows,
    preparing,
)
from jaxtrain.tasks import CLASSIFICATION, Task, with_ranking

# Of the files of the hardest examples.
_SUFFIXES: Final = {"table": "csv", "picture": "png"}


def evaluate(request: EvalRequest) -> dict[str, Any] | None:
    """Evaluates a checkpoint, alone or together with other processes, or an exported model.

    The metrics are also written to the workdir, if it can be.

    Returns:
        The metrics; None on all processes but the first.

    Raises:
        JaxtrainError: see `jaxtrain.errors` for what each kind means.
    """
    began = time.perf_counter()
    if request.predictions is not None:
        check_rows_file(request.predictions)
    stored = workdir.read_run(request.workdir)
    config = apply_overrides(stored.config, request.overrides)
    with (
        peers.start(request.processes, config.parallel.peer_timeout_seconds) as everybody,
        contextlib.closing(_console(everybody)) as console,
    ):
        everybody.before_exit(console.close)
        check_processes(everybody.count)
        asked = {
            "--checkpoint": request.checkpoint,
            "--split": request.split,
            "--predictions": str(request.predictions),
            "--top_k": str(request.top_k),
            "--hardest": str(request.hardest),
            "--by": request.by,
        }
        everybody.agree("the processes", provenance.identity(config, asked))
        model = _model(stored, request, config, console, everybody)
        foreign = _foreign(stored, model)
        if request.hardest is not None and foreign is not None:
            raise UsageError(
                f"--hardest={request.hardest} is kept in {stored.path}, but {foreign}; give the "
                "--workdir of its run"
            )
        with preparing(shown=everybody.is_first) as progress:
            split = predictor.open_split(model, config.data, _split_name(request, config), progress)
            split.prepare(progress)
        known = {"the step": str(model.step), "the split's checksum": split.fingerprint}
        everybody.agree("the processes", known)
        console.message(f"evaluating {_what(model)} on {split.size:,} examples of {split.name!r}")
        with within_memory():
            task = _task(request, model)
            scores = scored.score(model, split, config, task, console)
            _check_rows(request, model, scores)
            found = None
            if request.hardest is not None:
                found = hardest.find(scores.results, request.hardest, request.by, scores.norms)
        for metrics in scores.shown:
            console.evaluation(model.step, split.name, metrics)
        if request.has_other_data:
            _say_other_data(split, request, config, console)
        result = {
            "status": "evaluated",
            "step": model.step,
            "eval": {"split": split.name, **scores.metrics, **_weights(model)},
            **scores.replicas,
            "seconds": round(time.perf_counter() - began, 3),
            "workdir": str(stored.path),
        }
        if isinstance(model, Exported):
            result["exported"] = str(model.path)
        if everybody.is_first:
            name = _name(stored, model, split, request, scores.metrics)
            if found is not None:
                contents = hardest.files(found, split, model.class_names, _what(model))
                kept = _keep_hardest(stored, f"{name}-hardest-{found.by}", contents, console)
                result["hardest"] = {"by": found.by, "count": len(found.indices), **kept}
            full = {**result, "classes": _by_class(model, split, scores.results)}
            if scores.metrics["loss"] is None:
                del full["classes"]
            full["data"] = {"source": config.data.source, "fingerprint": split.fingerprint}
            warning = foreign and f"not kept in {stored.path}: {foreign}"
            warning = warning or workdir.try_write_eval(stored.path, f"{name}.json", full)
            if warning is not None:
                console.message(warning)
            if request.predictions is not None:
                _write_predictions(request.predictions, model, split, scores.results)
    return result if everybody.is_first else None


def _model(
    stored: workdir.StoredRun,
    request: EvalRequest,
    config: Config,
    console: Console,
    everybody: Peers,
) -> Restored | Exported:
    """What is to be evaluated."""
    if request.exported is None:
        return predictor.load(
            stored.checkpoints_dir,
            request.checkpoint,
            config,
            request.overrides,
            console.message,
            every=True,
        )
    if everybody.count > 1:
        raise UsageError(
            f"--exported={request.exported} is run by one process, but this is one of "
            f"{everybody.count}; start it alone, with --distributed=off"
        )
    return predictor.open_export(request.exported)


def _check_rows(request: EvalRequest, model: Restored | Exported, scores: scored.Scored) -> None:
    """Refuses to list examples by outputs of a replica that diverged in a sweep.

    Raises:
        NonFiniteError: they are asked for.
    """
    asked = request.predictions is not None or request.hardest is not None
    if asked and scores.metrics["loss"] is None:
        assert isinstance(model, Restored), "only a sweep goes on with such a model"
        raise NonFiniteError(
            f"the outputs of the run's model, with {model.variants[model.replica]}, are NaN or "
            "infinite, so there is nothing to list; take another with --config.train.export_replica"
        )


def _say_other_data(
    split: data.Split, request: EvalRequest, config: Config, console: Console
) -> None:
    """Says on what examples a model was evaluated that are not its run's."""
    size = shape_text(split.image_shape)
    how = f"brought to {size}" if is_image(split.image_shape) else size
    console.message(f"on other data than the run's, {how}: {split.origin}")
    if config.data.source in data.OWN_SOURCES and request.split is None:
        console.message(f"of its splits {split.name!r} alone; --split=train+val takes two")


def _weights(model: Restored | Exported) -> dict[str, str]:
    """Which weights were evaluated, where a run has two sets of them."""
    which = None if isinstance(model, Exported) else model.weights
    return {} if which is None else {"weights": which}


def _what(model: Restored | Exported) -> str:
    """The model in words."""
    if isinstance(model, Exported):
        return f"the {model.description.format} model of step {model.step}"
    return f"step {model.step}" + (f" ({model.weights} weights)" if model.weights else "")


def _foreign(stored: workdir.StoredRun, model: Restored | Exported) -> str | None:
    """Why a model is not the run's own; None: it is."""
    if isinstance(model, Exported):
        # Any of its replicas is its own.
        train = dataclasses.replace(
            model.config.train, export_replica=stored.config.train.export_replica
        )
        if difference(stored.config, dataclasses.replace(model.config, train=train)):
            return f"{model.path} was trained with another config"
    elif model.directory.resolve() != stored.checkpoints_dir.resolve():
        return f"{model.directory / str(model.step)} is not its own"
    return None


def _name(
    stored: workdir.StoredRun,
    model: Restored | Exported,
    split: data.Split,
    request: EvalRequest,
    metrics: dict[str, Any],
) -> str:
    """What the files that are kept of this evaluation begin with."""
    name = f"{split.name}-{model.step}"
    if isinstance(model, Exported):
        quantize = model.description.signature.get("quantize")
        name += f"-{model.description.format}" + (f"-{quantize}" if quantize else "")
    elif model.weights == "raw":
        name += "-raw"
    if model.config.train.export_replica != stored.config.train.export_replica:
        name += f"-replica{model.config.train.export_replica}"
    if "flip_average" in metrics:
        name += "-flip"
    if request.has_other_data:
        name += f"-{split.fingerprint}"
    return name


def _keep_hardest(
    stored: workdir.StoredRun, name: str, contents: Mapping[str, bytes], console: Console
) -> dict[str, str]:
    """Writes what `hardest.files` gives into the workdir, if it can be, and says so.

    Returns:
        The files that were written.
    """
    written = {}
    for kind, content in contents.items():
        file = f"{name}.{_SUFFIXES[kind]}"
        warning = workdir.try_write_eval_file(stored.path, file, content)
        if warning is None:
            written[kind] = str(workdir.eval_path(stored.path, file))
        console.message(warning or f"hardest examples: {written[kind]}")
    if "picture" not in contents:
        console.message("hardest examples: no picture, as they are no images")
    return written


def _console(everybody: Peers) -> Console:
    """What a person sees; nothing of all processes but the first."""
    return open_console(sys.stderr if everybody.is_first else io.StringIO(), time.perf_counter)


def _task(request: EvalRequest, model: Predictor) -> Task:
    """What is kept of each example: for predictions, its most probable classes too."""
    if request.predictions is None:
        return CLASSIFICATION
    if request.top_k > len(model.class_names):
        raise UsageError(
            f"--top_k={request.top_k} is more than the model's {len(model.class_names)} classes"
        )
    return with_ranking(CLASSIFICATION, request.top_k)


def _write_predictions(path: Path, model: Predictor, split: data.Split, results: Results) -> None:
    """A row an example, in data order."""
    names = np.asarray(model.class_names, object)
    with open_rows(path, top_k=results["top"].shape[1], with_label=True) as rows:
        for index in range(split.size):
            rows.write(
                Row(
                    path=place_of(split, index),
                    classes=tuple(names[results["top"][index]]),
                    probabilities=tuple(results["top_probability"][index].tolist()),
                    label=names[split.labels[index]],
                )
            )


def _split_name(request: EvalRequest, config: Config) -> str | None:
    """`--split`, else `data.eval_split` where the command line sets it, else what training used."""
    if request.split is None and "data.eval_split" in request.overrides:
        return config.data.eval_split
    return request.split


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
