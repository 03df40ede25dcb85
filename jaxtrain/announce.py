"""What a person is told of a training run before its first step and after its last."""

import math
import shlex
from collections.abc import Mapping
from typing import Any

import jax

from jaxtrain import data, files, setup, workdir
from jaxtrain.config import variants
from jaxtrain.errors import some
from jaxtrain.parallel.processes.peers import Peers
from jaxtrain.report import Reporter, loss_text, percent, replica_name
from jaxtrain.setup import Run, replicas_text

# All are in classes.json.
_SHOWN_CLASSES = 20


def introduce(run: Run, reporter: Reporter, everybody: Peers) -> None:
    """Says what is trained on what."""
    train, evaluated = run.dataset.train, run.dataset.eval
    params = run.abstract_one.params
    parameters, trained = (
        sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))
        for tree in (params, run.fixed.optimizer.trained(params))
    )
    reporter.message(
        f"data     {run.config.data.source}: {train.size:,} {train.name}, {evaluated.size:,} "
        f"{evaluated.name}, {run.dataset.num_classes} classes"
    )
    for note in run.dataset.notes:
        reporter.message(f"         {note}")
    names = run.dataset.class_names
    named = names != tuple(map(str, range(len(names))))
    if named and run.config.data.source in data.OWN_SOURCES:
        numbered = [f"{label} {name}" for label, name in enumerate(names)]
        reporter.message(f"classes  {some(numbered, _SHOWN_CLASSES)}")
    devices = f"{run.mesh.size} {jax.devices()[0].platform} device{'s' * (run.mesh.size > 1)}"
    if everybody.count > 1:
        devices += f" of {everybody.count} processes"
    if run.mesh.size > 1:
        axes = ", ".join(f"{axis}={size}" for axis, size in run.mesh.shape.items() if size > 1)
        how = run.config.parallel.rules if run.config.parallel.mode == "jit" else "pmap"
        devices += f" ({axes}; {how})"
    share = "" if trained == parameters else f" ({trained:,} of them trained)"
    reporter.message(
        f"model    {run.config.model.name}: {parameters:,} parameters{share}, on {devices}"
    )
    if len(run.variants) > 1:
        reporter.message(f"replicas {replicas_text(run)}")


def say_length(run: Run, opened: workdir.Workdir, reporter: Reporter, first: int) -> None:
    """Says how long it goes on, and what an extension does to the learning rate."""
    total = run.plan.total_steps
    go_on = f"going on from step {first:,} to {total:,}" if first else f"{total:,} steps"
    reporter.message(f"train    {go_on}, {setup.epochs_text(run)}")
    if opened.extended and opened.previous is not None:
        before = setup.build_plan(opened.previous, run.dataset.train.size)
        alone = variants(opened.previous)[run.config.train.export_replica].config
        old_rate = float(setup.build_schedule(alone, before)(first))
        reporter.message(
            f"extend   from {before.total_steps:,} to {total:,} steps; learning rate of step "
            f"{first + 1:,}: {old_rate:g} before, {float(run.fixed.schedule(first)):g} now"
        )


def say_what_next(
    run: Run, path: files.AnyPath, result: Mapping[str, Any], reporter: Reporter
) -> None:
    """Says what came of a finished run, and what to do with it."""
    if result["best"] is not None:
        reporter.message(
            "best     step {step:,}: {metric} {value:.6g}; --checkpoint=best is it".format(
                **result["best"]
            )
        )
    if len(run.variants) > 1:
        _say_replicas(run, path, result, reporter)
    reporter.message(f"evaluate it:  jaxtrain eval --workdir={shlex.quote(str(path))}")
    if run.config.report.tensorboard:
        # The names of replicas are cut less where they alone are shown.
        folder = shlex.quote(str(path if len(run.variants) > 1 else path.parent))
        reporter.message(f"see it:       tensorboard --logdir={folder}")


def _say_replicas(
    run: Run, path: files.AnyPath, result: Mapping[str, Any], reporter: Reporter
) -> None:
    """Says what came of each replica."""
    found = result["replicas"]["eval"]
    rows = zip(run.differences, found["loss"]["values"], found["accuracy"]["values"], strict=True)
    width = max(map(len, map(replica_name, run.differences)))
    for number, (model, loss, accuracy) in enumerate(rows):
        numbers = f"loss {loss_text(loss)}  accuracy {percent(accuracy)}"
        if loss is None:
            numbers = "diverged"
        which = "  (the run's model)" if number == run.config.train.export_replica else ""
        reporter.message(
            f"{'' if number else 'replicas':8} {replica_name(model):{width}}  {numbers}{which}"
        )
    if run.is_sweep:
        reporter.message(f"sweep    {path / workdir.SWEEP}")
        return
    accuracy = found["accuracy"]
    mean, deviation = percent(accuracy["mean"]), 100 * accuracy["deviation"]
    reporter.message(f"         mean accuracy {mean}, deviation {deviation:.2f}")
