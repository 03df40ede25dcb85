"""A picture of a sweep: what came of each value of a hyperparameter, and on what way."""

import io
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jaxtrain.report.metrics_log import Event, MetricsLog

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Where half of the values lie in less than this share of their range, that is logarithmic.
_CROWDED = 0.25

# What diverged is far away at so many times the largest value, or the smallest over as many.
_FAR = 10

# More of them would cover each other.
_MOST_LABELS = 8

T = TypeVar("T")


def sweep_picture(metrics_path: Path, key: str) -> bytes | None:
    """A PNG: the last accuracy and loss of each value, and all their evaluations over the steps.

    Args:
        metrics_path: the run's metrics.jsonl.
        key: the hyperparameter, which each of its events has.

    Returns:
        None: there is no evaluation in it, as somebody removed it.

    Raises:
        UsageError: a line of it is damaged.
    """
    # Not by the split: a run may be evaluated on the training split.
    events = [
        each
        for each in MetricsLog(metrics_path).read()
        if "learning_rate" not in each and key in each
    ]
    if not events:
        return None
    content = io.BytesIO()
    draw(events, key).savefig(content, format="png", dpi=120)
    return content.getvalue()


def draw(events: Sequence[Event], key: str) -> "Figure":
    """The picture as a figure of three axes: accuracy and loss by value, accuracy by step.

    What diverged is a cross at the lower edge, and in the corner if it is far from all others.

    Args:
        events: evaluations, one or more.
        key: the hyperparameter, which each of them has.
    """
    # Here, as it takes half a second to load and nothing else needs it.
    from matplotlib import colormaps  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415 - the figure alone, no window

    values = sorted({each[key] for each in events})
    last = [[each for each in events if each[key] == value][-1] for value in values]
    finite = [each[key] for each in last if each["loss"] is not None] or values
    near = [value for value in values if finite[0] / _FAR <= value <= finite[-1] * _FAR]
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    accuracy, loss, way = figure.subplots(1, 3)
    split = last[0]["split"]
    for axes, name in ((accuracy, "accuracy"), (loss, "loss")):
        axes.plot(values, _numbers(last, name), "o-")
        axes.set(xlabel=key, ylabel=f"{split} {name}", title=f"step {last[0]['step']:,}")
        _scale(axes, near)
        for each in last:
            if each["loss"] is None:
                _mark_diverged(axes, each[key])
    colours = colormaps["viridis"].resampled(len(values)) if len(values) > _MOST_LABELS else None
    for number, value in enumerate(values):
        own = [each for each in events if each[key] == value]
        steps, numbers = [each["step"] for each in own], _numbers(own, "accuracy")
        (line,) = way.plot(steps, numbers, ".-", label=str(value))
        if colours is not None:
            line.set_color(colours(number))
    way.set(xlabel="step", ylabel=f"{split} accuracy", title="on the way")
    title = key.rpartition(".")[2]
    figure.legend(handles=_thinned(way.lines), title=title, loc="outside right upper")
    return figure


def _scale(axes: "Axes", values: Sequence[float]) -> None:
    """An axis for these values: linear, or if most are small logarithmic, with a place for 0."""
    low, high = values[0], values[-1]
    if statistics.median(values) - low < _CROWDED * (high - low):
        least = min(value for value in values if value > 0)
        axes.set_xscale("symlog", linthresh=least)
        axes.minorticks_off()
        low, high = (low / 1.5 if low > 0 else -least / 4), high * 1.5
    else:
        margin = 0.06 * (high - low or 1.0)
        low, high = low - margin, high + margin
    axes.set_xlim(low, high)
    ticks = _thinned(values)
    axes.set_xticks(ticks, [str(value) for value in ticks])


def _mark_diverged(axes: "Axes", value: float) -> None:
    low, high = axes.get_xlim()
    place = min(max(value, low), high)
    axes.plot(place, 0.0, "rx", transform=axes.get_xaxis_transform(), clip_on=False)
    where = "left" if place == low else "right" if place == high else "center"
    axes.annotate(
        f"{value} diverged",
        (place, 0.03),
        xycoords=axes.get_xaxis_transform(),
        color="red",
        ha=where,
        fontsize="small",
    )


def _thinned(things: Sequence[T]) -> list[T]:
    """Of many things some, the first and the last among them."""
    count = len(things)
    if count <= _MOST_LABELS:
        return list(things)
    return [things[k * (count - 1) // (_MOST_LABELS - 1)] for k in range(_MOST_LABELS)]


def _numbers(events: Sequence[Event], name: str) -> list[Any]:
    """NaN, which leaves a gap, for what is not finite."""
    return [math.nan if each[name] is None else each[name] for each in events]
