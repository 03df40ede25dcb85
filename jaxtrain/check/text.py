"""The report for a person."""

from collections.abc import Sequence

from jaxtrain import config as configuration
from jaxtrain import setup
from jaxtrain.check.describe import Report
from jaxtrain.check.layout import (
    Layout,
    draw,
    shape_text,
    split_text,
)
from jaxtrain.config import CheckRequest
from jaxtrain.data import examples
from jaxtrain.errors import printable, some
from jaxtrain.report import sparkline
from jaxtrain.setup import Run

# More classes than this are summed up instead of listed.
_LISTED_CLASSES = 30
# Of more than these only the number is told.
_LISTED_EXAMPLES = 20
# Names of parameters in a line; --json lists all.
_LISTED_NAMES = 4


def counted(count: int, noun: str) -> str:
    """A number of things, as in `1 device` or `1,024 images`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def field(name: str, text: str) -> str:
    """A line of the report: what it is about (empty: the same as before), and what is said."""
    return f"{name:<12}{printable(text)}"


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
    steps, model = report["steps"], report["model"]
    schedule = report["schedule"]
    rates = [point["rate"] for point in schedule["points"]]
    noun = "image" if examples.is_image(run.image_shape) else "example"
    ema = report["memory"]["ema"]
    average = f", average of the weights {ema:,}" if ema else ""
    lines = _data_lines(run, report, noun)
    lines += [
        field(
            "steps",
            f"{steps['total']:,} of {run.plan.batch_size} {noun}s, {setup.epochs_text(run)} of "
            f"{steps['per_epoch']:g} steps; {counted(steps['evaluations'], 'evaluation')}, "
            f"{counted(steps['checkpoints'], 'checkpoint')}",
        ),
        field("evaluation", _evaluation(report["evaluation"], noun)),
        field("schedule", f"{run.config.schedule.name} {sparkline(rates, len(rates))}"),
        field("", "first {first:g}, highest {highest:g}, last {last:g}".format(**schedule)),
        *_layer_lines(model["layers"]),
        field("model", _model(run, model, noun)),
        *([field("replicas", setup.replicas_text(run))] if run.replicas else []),
        *(field("weights", note) for note in report["weights"]),
        *_rule_lines(report["rules"]),
        *_frozen_lines(report),
        field(
            "memory",
            "parameters {parameters:,} bytes, other variables {other_variables:,}, optimizer "
            "{optimizer:,}{average}, on each device; activations unknown".format(
                **report["memory"], average=average
            ),
        ),
        field("devices", _devices(report["devices"], noun)),
    ]
    if report["hosts"]["count"] > 1:
        lines.append(field("hosts", _hosts(report["hosts"], run.plan.batch_size, noun)))
    if run.mesh.size > 1:
        lines += _layout_lines(report)
    if "batch" in report:
        lines += _batch_lines(run, report["batch"])
    return lines


def _data_lines(run: Run, report: Report, noun: str) -> list[str]:
    names = list(report["data"])
    shapes = [examples.shape_text(of["image_shape"]) for of in report["data"].values()]
    shape = " and ".join(dict.fromkeys(shapes))
    sizes = ", ".join(f"{report['data'][name]['examples']:,} {name}" for name in names)
    classes = list(map(printable, run.dataset.class_names))
    lines = [field("data", f"{run.config.data.source}: {sizes}; {shape}; {len(classes)} classes")]
    lines += [field("", note) for note in run.dataset.notes]
    if len(classes) > _LISTED_CLASSES:
        for name in names:
            counts = report["data"][name]["per_class"]
            lines.append(field("", f"{name}: {min(counts):,} to {max(counts):,} {noun}s a class"))
        return lines
    width = max(len("class"), *map(len, classes))
    lines.append(field("", f"{'class':<{width}}" + "".join(f"{name:>12}" for name in names)))
    for index, label in enumerate(classes):
        counts = "".join(f"{report['data'][name]['per_class'][index]:>12,}" for name in names)
        lines.append(field("", f"{label:<{width}}{counts}"))
    return lines


def _layer_lines(layers: list[Report]) -> list[str]:
    """The layers that hold parameters, for one example."""
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
    return [field("", line) for line in table(rows, "<<<>>")]


def _model(run: Run, model: Report, noun: str) -> str:
    trained = model["trained_parameters"]
    share = "" if trained == model["parameters"] else f" ({trained:,} of them trained)"
    return (
        f"{run.config.model.name}: {model['parameters']:,} parameters{share}, "
        f"{model['flops_per_image']:,} FLOPs an {noun}"
    )


def _rule_lines(rules: Report) -> list[str]:
    """What each rule by parameter name matches."""
    lines = []
    for key, matched in rules.items():
        rows = [
            (rule["pattern"], f"{rule['factor']:g}", _names(rule["parameters"])) for rule in matched
        ]
        lines += table([(key, "factor", "matches"), *rows], "<><")
    return [field("" if number else "rules", line) for number, line in enumerate(lines)]


def _frozen_lines(report: Report) -> list[str]:
    """What stays as it is while training, if something does."""
    frozen = report["frozen"]
    lines = [_names(frozen["parameters"])] if frozen["parameters"] else []
    lines += ["batch statistics"] if frozen["batch_stats"] else []
    return [field("" if number else "frozen", line) for number, line in enumerate(lines)]


def _names(names: list[str]) -> str:
    """How many parameters, and which; of many the first ones."""
    if not names:
        return "nothing"
    return f"{counted(len(names), 'parameter')}: {some(names, _LISTED_NAMES)}"


def _evaluation(evaluation: Report, noun: str) -> str:
    batches = evaluation["batches"]
    text = (
        f"{counted(evaluation['examples'], noun)} in {batches:,} "
        f"batch{'' if batches == 1 else 'es'} of {evaluation['rows']:,}"
    )
    if evaluation["padding"]:
        text += f", of which {counted(evaluation['padding'], 'row')} of the last are padding"
    return text


def _devices(devices: Report, noun: str) -> str:
    axes = ", ".join(f"{axis}={size}" for axis, size in devices["mesh"].items() if size > 1)
    mesh = f" ({axes})" if axes else ""
    text = f"{devices['count']:,}{mesh}: {devices['rows_each']:,} {noun}s a step on each"
    if devices["replicas"] > 1:
        text += f", of {devices['replicas']:,} replicas"
    if devices["accumulate"] > 1:
        text += f", in {devices['accumulate']} parts one after the other"
    if devices["steps_per_call"] > 1:
        text += f"; up to {devices['steps_per_call']} steps in one go"
    return text


def _hosts(hosts: Report, batch_size: int, noun: str) -> str:
    rows = [f"{count:,}" for count in sorted(set(hosts["rows"]))]
    text = (
        f"{hosts['count']:,} of {counted(hosts['devices_each'], 'device')}: "
        f"{' or '.join(rows)} of a step's {batch_size:,} {noun}s on each"
    )
    if sum(hosts["rows"]) > batch_size:
        text += ", some on several"
    return text


def _layout_lines(report: Report) -> list[str]:
    """How each parameter lies on the devices; a drawing of the most split one and of the batch."""
    weight, batch = (Layout(**report["layout"][name]) for name in ("weight", "batch"))
    lines = ["every parameter is replicated"]
    if weight.parts > 1:
        rows = [
            (
                one["name"],
                shape_text(one["shape"]),
                split_text(one["split"]),
                f"{one['bytes_each']:,}",
            )
            for one in report["model"]["arrays"]
        ]
        rows = [("parameter", "shape", "split", "bytes on each device"), *rows]
        count = report["replicas"]["count"] if report["replicas"] else 1
        optimizer = report["memory"]["optimizer"] // count
        rows.append(("optimizer, in all", "", "", f"{optimizer:,}"))
        lines = [*table(rows, "<<<>"), *_drawn(weight)]
    lines += _drawn(batch) if batch.parts > 1 else ["the batch is replicated"]
    return [field("" if number else "layout", line) for number, line in enumerate(lines)]


def topology_lines(step: Report) -> list[str]:
    """What the TPU compiler says that a step takes on each device."""
    parts = step["flops_parts"]
    of_what = f"one of a step's {parts} parts and the update" if parts > 1 else "a step"
    rows = [(one["kind"], f"{one['count']:,}", f"{one['bytes']:,}") for one in step["collectives"]]
    lines = [
        f"{step['name']} ({step['device_kind']}): compiled in {step['seconds']:.0f} s; on each "
        "device:",
        "{total:,} bytes: arguments {arguments:,}, temporaries {temporaries:,},".format(
            **step["memory"]
        ),
        "outputs {outputs:,}, of which {aliased:,} in the arguments' place".format(
            **step["memory"]
        ),
        f"{step['flops']:,.0f} FLOPs for {of_what}",
        *table([("collectives of a step", "count", "bytes"), *rows], "<>>"),
    ]
    if not rows:
        lines[-1] = "no collectives"
    return [field("" if number else "topology", line) for number, line in enumerate(lines)]


def _drawn(one: Layout) -> list[str]:
    parts = f"{one.parts:,} parts of {shape_text(one.part)}, on devices"
    return [f"{one.name} ({split_text(one.split)}): {parts}", *draw(one)]


def table(rows: Sequence[Sequence[str]], aligned: str) -> list[str]:
    """Rows of a table as lines.

    Args:
        rows: the texts of each, the heading first.
        aligned: `<` or `>` for each column.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{text:{side}{width}}" for text, side, width in zip(row, aligned, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def _batch_lines(run: Run, batch: Report) -> list[str]:
    lines = [field("batch", f"step {batch['step']}: index and class of each example")]
    names = [
        f"{index}:{run.dataset.class_names[label]}"
        for index, label in zip(batch["indices"], batch["labels"], strict=True)
    ]
    lines += [field("", "  ".join(names[i : i + 8])) for i in range(0, len(names), 8)]
    return lines


def scan_lines(scan: Report) -> list[str]:
    """What came of reading all examples."""
    counts = ", ".join(f"{count:,} of {name}" for name, count in scan["examples"].items())
    bad, across, contradicting = (scan[key] for key in ("bad", "across_splits", "contradicting"))
    lines = [f"read {counts}: " + (f"{len(bad):,} cannot be decoded" if bad else "all decode")]
    lines += _some([f"  {one['place']} ({one['split']}): {one['error']}" for one in bad])
    if across:
        lines.append(f"in more than one split: {len(across):,}")
        lines += _some([_same(group) for group in across])
    if contradicting:
        lines.append(f"of more than one class: {len(contradicting):,}")
        lines += _some([_same(group) for group in contradicting])
    if scan["repeated"]:
        lines.append(f"{scan['repeated']:,} repeat another one of their split and class")
    return [field("" if number else "scan", line) for number, line in enumerate(lines)]


def _same(group: list[Report]) -> str:
    return "  " + " = ".join(f"{one['place']} ({one['split']}, {one['class']})" for one in group)


def _some(lines: list[str]) -> list[str]:
    more = len(lines) - _LISTED_EXAMPLES
    return lines[:_LISTED_EXAMPLES] + (
        [f"  and {more:,} more; --json lists all"] if more > 0 else []
    )


def preview_line(shown: Report) -> str:
    """What the picture shows."""
    changes = " and ".join(shown["changes"])
    said = f"before and after {changes}" if changes else "unchanged: data.augment is empty"
    count = counted(shown["examples"], "example")
    return field("preview", f"{shown['file']}: {count} of step {shown['step']}, {said}")
