"""`jaxtrain check`: what a run would do, and whether it would fail, before it is paid for."""

import dataclasses
import json

from jaxtrain import config as configuration
from jaxtrain import preview, setup
from jaxtrain.check.describe import Report, describe
from jaxtrain.check.text import config_lines, counted, field, preview_line, report_lines
from jaxtrain.config import CheckRequest
from jaxtrain.errors import JaxtrainError
from jaxtrain.parallel.mesh import abstract_mesh


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
    lines = config_lines(request) if request.print_config else []
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
        report |= describe(run, request)
        lines += [] if request.print_config else report_lines(run, report)
        if request.preview is not None:
            report["preview"] = preview.write(run, request.batch or 1, request.preview)
            lines.append(preview_line(report["preview"]))
        count = report["devices"]["count"]
        report["verdict"] = (
            f"ok: {request.config_name} would train {run.plan.total_steps:,} steps "
            f"on {counted(count, 'device')}"
        )
    report["ok"] = status == 0
    if request.json:
        report["sources"] = dict(request.sources)
        lines = [json.dumps(report, allow_nan=False)]
    else:
        lines.append(field("verdict", report["verdict"]))
    return "\n".join(lines) + "\n", status
