"""The report for a person."""

from jaxtrain import config as configuration
from jaxtrain import setup
from jaxtrain.check.describe import Report
from jaxtrain.config import CheckRequest
from jaxtrain.report import sparkline
from jaxtrain.setup import Run

# More classes than this are summed up instead of listed.
_LISTED_CLASSES = 30


def counted(count: int, noun: str) -> str:
    """A number of things, as in `1 device` or `1,024 images`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def field(name: str, text: str) -> str:
    """A line of the report: what it is about (empty: the same as before), and what is said."""
    return f"{name:<12}{text}"


def config_lines(request: CheckRequest) -> list[str]:
    """Every key: its value, where that came from, and what it means."""
    values = configuration.flatten(request.config)
    docs = configuration.key_docs()
    width = max(len(f"{key} = {value!r}") for key, value in values.items())
    return [
        f"{f'{key} = {value!r}':<{width}}  # {request.sources.get(key, 'default')}: {docs[key].doc}"
        for key, value in values.items()
    ]


def report_lines(run: Run, report: Report) -> list[str]:
    """The report for a person."""
    steps, model, devices = report["steps"], report["model"], report["devices"]
    schedule = report["schedule"]
    rates = [point["rate"] for point in schedule["points"]]
    lines = _data_lines(run, report)
    lines += [
        field(
            "steps",
            f"{steps['total']:,} of {run.plan.batch_size} images, {setup.epochs_text(run)} of "
            f"{steps['per_epoch']:g} steps; {counted(steps['evaluations'], 'evaluation')}, "
            f"{counted(steps['checkpoints'], 'checkpoint')}",
        ),
        field("schedule", f"{run.config.schedule.name} {sparkline(rates, len(rates))}"),
        field("", "first {first:g}, highest {highest:g}, last {last:g}".format(**schedule)),
        *_layer_lines(model["layers"]),
        field(
            "model",
            f"{run.config.model.name}: {model['parameters']:,} parameters, "
            f"{model['flops_per_image']:,} FLOPs an image",
        ),
        field(
            "memory",
            f"parameters {model['parameter_bytes']:,} bytes, other variables "
            f"{model['other_variable_bytes']:,}, optimizer {model['optimizer_bytes']:,}, on each "
            "device; activations unknown",
        ),
        field("devices", _devices(devices)),
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
    lines = [field("data", f"{run.config.data.source}: {sizes}; {shape}; {len(classes)} classes")]
    if len(classes) > _LISTED_CLASSES:
        for name in names:
            counts = report["data"][name]["per_class"]
            lines.append(field("", f"{name}: {min(counts):,} to {max(counts):,} images a class"))
        return lines
    width = max(len("class"), *map(len, classes))
    lines.append(field("", f"{'class':<{width}}" + "".join(f"{name:>12}" for name in names)))
    for index, label in enumerate(classes):
        counts = "".join(f"{report['data'][name]['per_class'][index]:>12,}" for name in names)
        lines.append(field("", f"{label:<{width}}{counts}"))
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
        lines.append(field("", f"{left}  {parameters:>{widths[3]}}  {flops:>{widths[4]}}"))
    return lines


def _devices(devices: Report) -> str:
    text = f"{devices['count']}: {devices['rows_each']} images a step on each"
    if devices["accumulate"] > 1:
        text += f", in {devices['accumulate']} parts one after the other"
    if devices["steps_per_call"] > 1:
        text += f"; up to {devices['steps_per_call']} steps in one go"
    return text


def _batch_lines(run: Run, batch: Report) -> list[str]:
    lines = [field("batch", f"step {batch['step']}: index and class of each example")]
    names = [
        f"{index}:{run.dataset.class_names[label]}"
        for index, label in zip(batch["indices"], batch["labels"], strict=True)
    ]
    lines += [field("", "  ".join(names[i : i + 8])) for i in range(0, len(names), 8)]
    return lines


def preview_line(shown: Report) -> str:
    """What the picture shows."""
    changes = " and ".join(shown["changes"])
    said = f"before and after {changes}" if changes else "unchanged: data.augment is empty"
    count = counted(shown["examples"], "example")
    return field("preview", f"{shown['file']}: {count} of step {shown['step']}, {said}")
