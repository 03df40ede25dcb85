"""A picture of a sweep: what came of each value of a hyperparameter, and on what way."""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxtrain.report.metrics_log import Event, MetricsLog

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Values further apart than this are drawn along a logarithmic axis.
_FAR_APART = 8.0


def sweep_picture(metrics_path: Path, key: str) -> bytes:
    """A PNG: the last accuracy and loss of each value, and all their evaluations over the steps.

    Args:
        metrics_path: the run's metrics.jsonl.
        key: the hyperparameter, which each of its events has.

    Raises:
        UsageError: a line of it is damaged.
    """
    # Not by the split: a run may be evaluated on the training split.
    events = [each for each in MetricsLog(metrics_path).read() if "learning_rate" not in each]
    content = io.BytesIO()
    draw(events, key).savefig(content, format="png", dpi=120)
    return content.getvalue()


def draw(events: Sequence[Event], key: str) -> "Figure":
    """The picture as a figure of three axes: accuracy and loss by value, accuracy by step.

    Args:
        events: all evaluations.
        key: the hyperparameter, which each of them has.
    """
    # Here, as it takes half a second to load and nothing else needs it.
    from matplotlib.figure import Figure  # noqa: PLC0415 - the figure alone, no window

    values = sorted({each[key] for each in events})
    last = [[each for each in events if each[key] == value][-1] for value in values]
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    accuracy, loss, way = figure.subplots(1, 3)
    split = last[0]["split"]
    least = min(value for value in values if value > 0)
    for axes, name in ((accuracy, "accuracy"), (loss, "loss")):
        axes.plot(values, _numbers(last, name), "o-")
        axes.set(xlabel=key, ylabel=f"{split} {name}", title=f"step {last[0]['step']:,}")
        if values[-1] / least > _FAR_APART:
            axes.set_xscale("symlog", linthresh=least)  # which has a place for 0
            axes.minorticks_off()
        axes.set_xticks(values, [str(value) for value in values])
    for value in values:
        own = [each for each in events if each[key] == value]
        steps = [each["step"] for each in own]
        way.plot(steps, _numbers(own, "accuracy"), ".-", label=str(value))
    way.set(xlabel="step", ylabel=f"{split} accuracy", title="on the way")
    way.legend(title=key.rpartition(".")[2])
    return figure


def _numbers(events: Sequence[Event], name: str) -> list[Any]:
    """NaN, which leaves a gap, for what is not finite."""
    return [math.nan if each[name] is None else each[name] for each in events]
