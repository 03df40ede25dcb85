"""`jaxtrain check`: what a run would do, and whether it would fail, before it is paid for."""

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtrain import config as configuration
from jaxtrain import data, preview, rules, setup
from jaxtrain.config import CheckRequest
from jaxtrain.errors import JaxtrainError, UsageError
from jaxtrain.models import summary
from jaxtrain.parallel.mesh import abstract_mesh
from jaxtrain.report import sparkline
from jaxtrain.setup import Run
from jaxtrain.state import tree_bytes

# More classes than this are summed up instead of listed.
_LISTED_CLASSES = 30
_SCHEDULE_POINTS = 60

Report = dict[str, Any]


def check(request: CheckRequest) -> tuple[str, int]:
    """Says what the run would do and a verdict; nothing is trained or downloaded.

    Nothing is written but the picture that `request.preview` asks for, and that only of a run that
    would start.

    Returns:
        The report to print; and 0 if training would start, else the exit status with which it
        would end.

    Raises:
        UsageError: the run has no step `request.batch`.
        JaxtrainError: the picture cannot be made.
    """
    report: Report = {"config": configuration.flatten(request.config)}
    lines = _config_lines(request) if request.print_config else []
    status = 0
    config = request.config
    here = dataclasses.replace(config, data=dataclasses.replace(config.data, download=False))
    try:
        mesh = (
            None if request.devices is None else abstract_mesh(here.parallel.mesh, request.devices)
        )
        run = setup.build(here, mesh)
    except JaxtrainError as error:
        status = error.status
        said = " ".join(str(error).splitlines())
        report["verdict"] = f"would fail: {said}"
        if config.data.download and "data.download=true" in said:
            report["verdict"] = f"not known before the download: {said.partition(';')[0]}"
    else:
        report |= _describe(run, request)
        lines += [] if request.print_config else _lines(run, report)
        if request.preview is not None:
            report["preview"] = preview.write(run, request.batch or 1, request.preview)
            lines.append(_preview_line(report["preview"]))
        count = report["devices"]["count"]
        report["verdict"] = (
            f"ok: {request.config_name} would train {run.plan.total_steps:,} steps "
            f"on {_counted(count, 'device')}"
        )
    report["ok"] = status == 0
    if request.json:
        report["sources"] = dict(request.sources)
        lines = [json.dumps(report, allow_nan=False)]
    else:
        lines.append(_field("verdict", report["verdict"]))
    return "\n".join(lines) + "\n", status


def _describe(run: Run, request: CheckRequest) -> Report:
    """Everything that the report says, as JSON values."""
    steps = run.plan.total_steps
    points = np.linspace(1, steps, min(steps, _SCHEDULE_POINTS)).round().astype(int)
    # Compiled, as the step is: that rounds in another way than one operation after the other.
    schedule = jax.jit(lambda count: jnp.asarray(run.fixed.schedule(count), jnp.float32))
    rates = [float(schedule(np.int32(step - 1))) for step in points]
    peak = float(schedule(np.int32(run.plan.warmup_steps(run.config.schedule))))
    count = request.devices or run.mesh.size
    report: Report = {
        "data": {split.name: _split(run, split) for split in (run.dataset.train, run.dataset.eval)},
        "class_names": list(run.dataset.class_names),
        "steps": {
            "total": steps,
            "epochs": run.plan.epoch(steps),
            "per_epoch": run.plan.examples / run.plan.batch_size,
            "evaluations": run.plan.count(run.plan.evaluate_every),
            "checkpoints": run.plan.count(run.plan.save_every),
        },
        "schedule": {
            "first": rates[0],
            "highest": peak,
            "last": rates[-1],
            "points": [{"step": int(s), "rate": r} for s, r in zip(points, rates, strict=True)],
        },
        "model": _model(run),
        "devices": {
            "count": count,
            "rows_each": run.config.train.batch_size // count,
            "accumulate": run.fixed.accumulate,
            "steps_per_call": run.steps_per_call,
        },
    }
    if request.batch is not None:
        report["batch"] = _batch(run, request.batch)
    return report


def _split(run: Run, split: data.Split) -> Report:
    counts = np.bincount(split.labels, minlength=run.dataset.num_classes)
    return {
        "examples": split.size,
        "image_shape": list(split.image_shape),
        "bytes": split.nbytes,
        "fingerprint": split.fingerprint,
        "per_class": counts.tolist(),
    }


def _model(run: Run) -> Report:
    params = run.abstract.params
    leaves = jax.tree.leaves(params)
    layers = summary.layers(run.fixed.model, run.abstract.model, run.image_shape)
    return {
        "parameters": sum(int(np.prod(leaf.shape)) for leaf in leaves),
        "parameter_bytes": tree_bytes(params),
        "other_variable_bytes": tree_bytes(run.abstract.collections),
        "optimizer_bytes": tree_bytes(run.abstract.opt_state),
        "flops_per_image": sum(layer.flops for layer in layers),
        "layers": [dataclasses.asdict(layer) for layer in layers],
        "arrays": [
            {"name": name, "shape": list(leaf.shape), "dtype": str(leaf.dtype)}
            for name, leaf in zip(rules.parameter_names(params), leaves, strict=True)
        ],
    }


def _batch(run: Run, step: int) -> Report:
    """The examples of one step's batch: the same on every machine, for ever."""
    if not 1 <= step <= run.plan.total_steps:
        raise UsageError(f"--batch={step} is outside the run's steps 1..{run.plan.total_steps}")
    indices = run.sampler.indices(step)
    return {
        "step": step,
        "indices": indices.tolist(),
        "labels": run.dataset.train.labels[indices].tolist(),
    }


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _field(name: str, text: str) -> str:
    return f"{name:<12}{text}"


def _config_lines(request: CheckRequest) -> list[str]:
    values = configuration.flatten(request.config)
    docs = configuration.key_docs()
    width = max(len(f"{key} = {value!r}") for key, value in values.items())
    return [
        f"{f'{key} = {value!r}':<{width}}  # {request.sources.get(key, 'default')}: {docs[key].doc}"
        for key, value in values.items()
    ]


def _lines(run: Run, report: Report) -> list[str]:
    """The report for a person."""
    steps, model, devices = report["steps"], report["model"], report["devices"]
    schedule = report["schedule"]
    rates = [point["rate"] for point in schedule["points"]]
    lines = _data_lines(run, report)
    lines += [
        _field(
            "steps",
            f"{steps['total']:,} of {run.plan.batch_size} images, {setup.epochs_text(run)} of "
            f"{steps['per_epoch']:g} steps; {_counted(steps['evaluations'], 'evaluation')}, "
            f"{_counted(steps['checkpoints'], 'checkpoint')}",
        ),
        _field("schedule", f"{run.config.schedule.name} {sparkline(rates, len(rates))}"),
        _field("", "first {first:g}, highest {highest:g}, last {last:g}".format(**schedule)),
        *_layer_lines(model["layers"]),
        _field(
            "model",
            f"{run.config.model.name}: {model['parameters']:,} parameters, "
            f"{model['flops_per_image']:,} FLOPs an image",
        ),
        _field(
            "memory",
            f"parameters {model['parameter_bytes']:,} bytes, other variables "
            f"{model['other_variable_bytes']:,}, optimizer {model['optimizer_bytes']:,}, on each "
            "device; activations unknown",
        ),
        _field("devices", _devices(devices)),
    ]
    if "batch" in report:
        lines += _batch_lines(run, report["batch"])
    return lines


def _data_lines(run: Run, report: Report) -> list[str]:
    names = list(report["data"])
    first = next(iter(report["data"].values()))
    shape = "x".join(map(str, first["image_shape"]))
    sizes = ", ".join(f"{report['data'][name]['examples']:,} {name}" for name in names)
    classes = run.dataset.class_names
    lines = [_field("data", f"{run.config.data.source}: {sizes}; {shape}; {len(classes)} classes")]
    if len(classes) > _LISTED_CLASSES:
        for name in names:
            counts = report["data"][name]["per_class"]
            lines.append(_field("", f"{name}: {min(counts):,} to {max(counts):,} images a class"))
        return lines
    width = max(len("class"), *map(len, classes))
    lines.append(_field("", f"{'class':<{width}}" + "".join(f"{name:>12}" for name in names)))
    for index, label in enumerate(classes):
        counts = "".join(f"{report['data'][name]['per_class'][index]:>12,}" for name in names)
        lines.append(_field("", f"{label:<{width}}{counts}"))
    return lines


def _layer_lines(layers: list[Report]) -> list[str]:
    """The layers that hold parameters, for one image."""
    rows = [
        (
            layer["name"],
            layer["kind"],
            "x".join(map(str, layer["output"][1:])),
            f"{layer['parameters']:,}",
            f"{layer['flops']:,}",
        )
        for layer in layers
    ]
    rows = [("layer", "kind", "output", "parameters", "FLOPs"), *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, kind, output, parameters, flops in rows:
        left = f"{name:<{widths[0]}}  {kind:<{widths[1]}}  {output:<{widths[2]}}"
        lines.append(_field("", f"{left}  {parameters:>{widths[3]}}  {flops:>{widths[4]}}"))
    return lines


def _devices(devices: Report) -> str:
    text = f"{devices['count']}: {devices['rows_each']} images a step on each"
    if devices["accumulate"] > 1:
        text += f", in {devices['accumulate']} parts one after the other"
    if devices["steps_per_call"] > 1:
        text += f"; up to {devices['steps_per_call']} steps in one go"
    return text


def _batch_lines(run: Run, batch: Report) -> list[str]:
    lines = [_field("batch", f"step {batch['step']}: index and class of each example")]
    names = [
        f"{index}:{run.dataset.class_names[label]}"
        for index, label in zip(batch["indices"], batch["labels"], strict=True)
    ]
    lines += [_field("", "  ".join(names[i : i + 8])) for i in range(0, len(names), 8)]
    return lines


def _preview_line(shown: Report) -> str:
    changes = " and ".join(shown["changes"])
    said = f"before and after {changes}" if changes else "unchanged: data.augment is empty"
    count = _counted(shown["examples"], "example")
    return _field("preview", f"{shown['file']}: {count} of step {shown['step']}, {said}")
