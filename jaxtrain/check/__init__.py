"""`jaxtrain check`: what a run would do, and whether it would fail, before it is paid for."""

import dataclasses
import json
from collections.abc import Sequence

import jax

from jaxtrain import config as configuration
from jaxtrain import data, preview, setup
from jaxtrain.check.describe import Report, describe, describe_scan, describe_step
from jaxtrain.check.text import (
    config_lines,
    counted,
    field,
    preview_line,
    report_lines,
    scan_lines,
    topology_lines,
)
from jaxtrain.check.topology import compile_step, tpu_devices
from jaxtrain.config import CheckRequest, Config
from jaxtrain.config.schema import DataConfig
from jaxtrain.errors import DataError, JaxtrainError, UsageError, one_line
from jaxtrain.parallel.mesh import AnyMesh, abstract_mesh, build_mesh
from jaxtrain.report import preparing


def check(request: CheckRequest) -> tuple[str, int]:
    """Says what the run would do and a verdict; nothing is trained or downloaded.

    Nothing is written but the picture that `request.preview` asks for, and that only of a run that
    would start.

    Returns:
        The report to print; and 0 if training would start, else the exit status with which it
        would end.

    Raises:
        UsageError: the run has no step `request.batch`, or there is no TPU slice
            `request.topology` or no compiler for it.
        JaxtrainError: the picture cannot be made.
    """
    report: Report = {"config": configuration.flatten(request.config)}
    lines = config_lines(request) if request.print_config else []
    config = request.config
    here = dataclasses.replace(config, data=dataclasses.replace(config.data, download=False))
    tpus = None if request.topology is None else tpu_devices(request.topology)
    run, failed = _set_up(here, _mesh(here.parallel.mesh, request.devices, tpus))
    if run is not None:
        report |= describe(run, request)
        lines += [] if request.print_config else report_lines(run, report)
    if request.scan:  # also where a run would not start for a file that is missing: there are more
        scanned, bad = _scan(here.data)
        if scanned is not None:
            report["scan"] = scanned
            lines += scan_lines(scanned)
        failed = failed or bad
    if run is not None and failed is None:
        failed = _try_out(run, request, report, lines)
    elif request.preview is not None:
        lines.append(field("preview", f"{request.preview} is not drawn: the run would fail"))
    if failed is not None:
        report["verdict"] = _failed(one_line(failed), download=config.data.download)
    report["ok"] = failed is None
    if request.json:
        report["sources"] = dict(request.sources)
        lines = [json.dumps(report, allow_nan=False)]
    else:
        lines.append(field("verdict", report["verdict"]))
    return "\n".join(lines) + "\n", 0 if failed is None else failed.status


def _set_up(
    config: Config, mesh: AnyMesh | None
) -> tuple[setup.Run, None] | tuple[None, JaxtrainError]:
    """The run, or why it would not start."""
    try:
        with preparing() as progress:
            run = setup.build(config, mesh, progress)
        run.check_given()
    except JaxtrainError as error:
        return None, error
    return run, None


def _scan(config: DataConfig) -> tuple[Report | None, JaxtrainError | None]:
    """What came of reading all examples, and what training would fail with for it."""
    try:
        with preparing() as progress:
            scan = data.scan(config, progress)
    except JaxtrainError as error:
        return None, error
    failed = None
    if scan.bad and config.on_bad_file == "error":
        first = scan.bad[0]
        failed = DataError(
            f"{len(scan.bad):,} of {sum(scan.counts.values()):,} examples cannot be decoded, first "
            f"{first.place}: {first.error}; mend or remove them, or set data.on_bad_file=skip"
        )
    return describe_scan(scan), failed


def _try_out(
    run: setup.Run, request: CheckRequest, report: Report, lines: list[str]
) -> UsageError | None:
    """Adds what is asked for of a run that would start: its picture, its step on a TPU slice.

    Returns:
        Why the step cannot be compiled for the slice.
    """
    if request.preview is not None:
        report["preview"] = preview.write(run, request.batch or 1, request.preview)
        lines.append(preview_line(report["preview"]))
    report["verdict"] = (
        f"ok: {request.config_name} would train {run.plan.total_steps:,} steps "
        f"on {counted(run.mesh.size, 'device')}"
    )
    if request.topology is None:
        return None
    try:
        step = compile_step(run, request.topology)
    except UsageError as error:
        return error
    report["topology"] = describe_step(run, request.topology, step)
    lines += topology_lines(report["topology"])
    return None


def _mesh(text: str, pretended: int | None, tpus: Sequence[jax.Device] | None) -> AnyMesh | None:
    """The mesh to check for, if it is not that of the devices here."""
    if tpus is not None:
        return build_mesh(text, tpus)
    return None if pretended is None else abstract_mesh(text, pretended)


def _failed(said: str, *, download: bool) -> str:
    """The verdict on a run that would not start."""
    if download and "data.download=true" in said:
        return f"not known before the download: {said.partition(';')[0]}"
    return f"would fail: {said}"
