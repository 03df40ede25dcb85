"""The numbers of several models of one run, taken together."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Metrics = Mapping[str, Any]


def spread(values: Sequence[float | None]) -> dict[str, Any]:
    """The mean of numbers, their sample standard deviation, and the numbers themselves.

    Args:
        values: two or more; with a None there is no mean and no deviation.
    """
    known = [value for value in values if value is not None]
    whole = len(known) == len(values)
    return {
        "mean": statistics.fmean(known) if whole else None,
        "deviation": statistics.stdev(known) if whole else None,
        "values": list(values),
    }


def spreads(each: Sequence[Metrics]) -> dict[str, dict[str, Any]]:
    """`spread` of each number that models have, such as `loss` and `accuracy`.

    A model may lack what others have. What is no measurement, such as a count, is left out.
    """
    names = dict.fromkeys(name for metrics in each for name in metrics)
    columns = {name: [metrics.get(name) for metrics in each] for name in names}
    return {
        name: spread(values)
        for name, values in columns.items()
        if not any(isinstance(value, bool | str | int) for value in values)
    }


def values_alone(found: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """`spreads` of models that differ in more than their seeds, whose mean says nothing."""
    return {name: {"values": of["values"]} for name, of in found.items()}


def mean(each: Sequence[Metrics]) -> dict[str, Any]:
    """The metrics of one model, with the means of what the models have in place of its own.

    With `accuracy_deviation`, and `models`, their number.
    """
    found = spreads(each)
    means = {name: of["mean"] for name, of in found.items()}
    beside = {"accuracy_deviation": found["accuracy"]["deviation"], "models": len(each)}
    return {**each[0], **means, **beside}
