"""What a run would do, as JSON values."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtrain import data, rules
from jaxtrain.config import CheckRequest
from jaxtrain.errors import UsageError
from jaxtrain.models import summary
from jaxtrain.setup import Run
from jaxtrain.state import tree_bytes

_SCHEDULE_POINTS = 60

Report = dict[str, Any]


def describe(run: Run, request: CheckRequest) -> Report:
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
