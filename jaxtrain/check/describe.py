"""What a run would do, as JSON values."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxtrain import data, optimizer, rules
from jaxtrain.check.layout import Layout, batch_layout, most_split, parameter_layouts
from jaxtrain.check.topology import CompiledStep
from jaxtrain.config import CheckRequest
from jaxtrain.data.scan import Example
from jaxtrain.errors import UsageError
from jaxtrain.evaluation import batch_rows
from jaxtrain.models import freezing, summary
from jaxtrain.parallel.mesh import bytes_per_device, row_parts
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
    peak = float(schedule(np.int32(run.plan.warmup_steps(run.variant.config.schedule))))
    parameters, batch = parameter_layouts(run), batch_layout(run)
    report: Report = {
        "data": {split.name: _split(run, split) for split in (run.dataset.train, run.dataset.eval)},
        "class_names": list(run.dataset.class_names),
        "notes": list(run.dataset.notes),
        "left_out": {name: dict(files) for name, files in run.dataset.left_out.items()},
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
        "evaluation": _evaluation(run),
        "model": _model(run, parameters),
        "replicas": _replicas(run),
        "weights": list(run.check_given()),
        "rules": _rules(run),
        "frozen": _frozen(run),
        "memory": {
            "parameters": bytes_per_device(run.abstract.params),
            "other_variables": bytes_per_device(run.abstract.collections),
            "optimizer": bytes_per_device(run.abstract.opt_state),
            "ema": bytes_per_device(run.abstract.ema),
            "activations": None,
        },
        "devices": {
            "count": run.mesh.size,
            "mesh": dict(run.mesh.shape),
            "rows_each": batch.part[0],
            "replicas": run.rows // run.config.train.batch_size,
            "accumulate": run.fixed.accumulate,
            "steps_per_call": run.steps_per_call,
        },
        "hosts": _hosts(run, batch, request.hosts or 1),
        "layout": {
            "weight": dataclasses.asdict(most_split(parameters)),
            "batch": dataclasses.asdict(batch),
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


def _evaluation(run: Run) -> Report:
    """The batches of one evaluation; masked rows fill the last."""
    examples = run.dataset.eval.size
    rows = batch_rows(
        run.config.eval.batch_size,
        examples,
        run.mesh,
        replicas=None if run.replicas is None else run.replicas.count,
        unroll=run.fixed.unroll,
    )
    batches = -(-examples // rows)
    return {
        "examples": examples,
        "rows": rows,
        "rows_each": rows // row_parts(run.mesh),
        "batches": batches,
        "padding": batches * rows - examples,
    }


def _hosts(run: Run, batch: Layout, pretended: int) -> Report:
    """How many rows of a batch the devices of each host hold.

    Args:
        run: the run.
        batch: the batch's layout.
        pretended: number of hosts, if the devices are pretended.
    """
    mesh = run.mesh
    if isinstance(mesh, Mesh):
        host_of = {device.id: device.process_index for device in mesh.devices.flat}
    else:
        each = mesh.size // pretended
        host_of = {device: device // each for device in range(mesh.size)}
    hosts = sorted(set(host_of.values()))
    held = [{host_of[device] for device in part} for (part,) in batch.devices]
    return {
        "count": len(hosts),
        "devices_each": mesh.size // len(hosts),
        "rows": [batch.part[0] * sum(host in part for part in held) for host in hosts],
    }


def _model(run: Run, parameters: list[Layout]) -> Report:
    params = run.abstract_one.params
    layers = summary.layers(run.fixed.model, run.abstract_one.model, run.image_shape)
    return {
        "parameters": sum(math.prod(one.shape) for one in parameters),
        "trained_parameters": sum(
            math.prod(leaf.shape) for leaf in jax.tree.leaves(run.fixed.optimizer.trained(params))
        ),
        "parameter_bytes": tree_bytes(params),
        "other_variable_bytes": tree_bytes(run.abstract_one.collections),
        "optimizer_bytes": tree_bytes(run.abstract_one.opt_state),
        "flops_per_image": sum(layer.flops for layer in layers),
        "layers": [dataclasses.asdict(layer) for layer in layers],
        "arrays": [
            {
                "name": one.name,
                "shape": list(one.shape),
                "dtype": str(leaf.dtype),
                "split": [list(axes) for axes in one.split],
                "bytes_each": one.bytes_each,
            }
            for one, leaf in zip(parameters, jax.tree.leaves(params), strict=True)
        ],
    }


def _replicas(run: Run) -> Report | None:
    """The replicas of a run; None: there is one model."""
    replicas = run.replicas
    if replicas is None:
        return None
    key, values = run.variant.key, [variant.value for variant in run.variants]
    return {"count": replicas.count, "key": key, "values": values, "vmapped": not replicas.unroll}


def _rules(run: Run) -> Report:
    """What each rule by parameter name matches, by key; of the optimizer's keys that matter."""
    found = optimizer.rules_in_effect(run.variant.config.optimizer, run.abstract_one.params)
    return {
        key: [
            {"pattern": rule.pattern, "factor": rule.value, "parameters": list(rule.names)}
            for rule in matched
        ]
        for key, matched in found.items()
    }


def _frozen(run: Run) -> Report:
    """What stays as it is while training."""
    frozen = run.fixed.optimizer.frozen
    statistics = "batch_stats" in run.abstract_one.collections
    return {
        "parameters": [
            name for name in rules.parameter_names(run.abstract_one.params) if name in frozen
        ],
        "batch_stats": statistics and freezing.freezes_statistics(run.config.model),
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


def describe_scan(scan: data.Scan) -> Report:
    """What came of reading all examples."""

    def places(group: tuple[Example, ...]) -> list[Report]:
        return [{"split": each.split, "place": each.place, "class": each.label} for each in group]

    return {
        "examples": dict(scan.counts),
        "bad": [
            {"split": each.split, "place": each.place, "error": each.error} for each in scan.bad
        ],
        "across_splits": [places(group) for group in scan.across],
        "contradicting": [places(group) for group in scan.contradicting],
        "repeated": scan.repeated,
    }


def describe_step(run: Run, name: str, step: CompiledStep) -> Report:
    """What one device of the TPU slice `name` needs for a step."""
    assert isinstance(run.mesh, Mesh)
    return {
        "name": name,
        "device_kind": run.mesh.devices.flat[0].device_kind,
        "seconds": step.seconds,
        "memory": {
            "total": step.total_bytes,
            "arguments": step.argument_bytes,
            "temporaries": step.temporary_bytes,
            "outputs": step.output_bytes,
            "aliased": step.alias_bytes,
        },
        "flops": step.flops,
        "flops_parts": run.fixed.accumulate,
        "collectives": [dataclasses.asdict(one) for one in step.collectives],
    }
