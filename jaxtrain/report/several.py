"""The numbers of a run's replicas, taken together."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Metrics = Mapping[str, Any]

# Of more replicas a line would be long, and their lines many.
_SHOWN = 8
_BEST = 3


def replica_name(difference: Mapping[str, float]) -> str:
    """What a replica is called: `seed=1`, or `learning_rate=0.03`.

    Args:
        difference: what it differs in from the others, as `{"seed": 1}`.
    """
    ((key, value),) = difference.items()
    return f"{key.rpartition('.')[2]}={value}"


def summed_up(
    differences: Sequence[Mapping[str, float]], numbers: Mapping[str, Sequence[Metrics]]
) -> dict[str, Any]:
    """What `result.json` has of replicas, as JSON values.

    Args:
        differences: what each of them differs in.
        numbers: of each kind, such as `eval`, the metrics of each replica.

    Returns:
        The key in which they differ, with its values; and each kind, with the `values` of each
        metric, such as `accuracy`, and of replicas that differ in their seeds their `mean` and
        `deviation`.
    """
    ((key, _),) = differences[0].items()
    found: dict[str, Any] = {key: [difference[key] for difference in differences]}
    for kind, each in numbers.items():
        columns = spreads(each)
        if key != "seed":  # their mean says nothing
            columns = {name: {"values": of["values"]} for name, of in columns.items()}
        found[kind] = columns
    return found


def shown(differences: Sequence[Mapping[str, float]], each: Sequence[Metrics]) -> list[Metrics]:
    """The metrics of replicas for a person: the mean over seeds; in a sweep those of each, named.

    Of a long sweep those of the best alone.

    Args:
        differences: what each of them differs in; empty: there is one model.
        each: the metrics of each.
    """
    if not differences:
        return list(each)
    if "seed" in differences[0]:
        return [mean(each)]
    named: list[Metrics] = [
        {**metrics, "replica": replica_name(difference)}
        for metrics, difference in zip(each, differences, strict=True)
    ]
    if len(named) <= _SHOWN:
        return named
    best = sorted(named, key=lambda metrics: -(metrics["accuracy"] or 0.0))[:_BEST]
    of = f"of the {_BEST} best of {len(named):,}"
    return [{**metrics, "replica": f"{metrics['replica']}, {of}"} for metrics in best]


def spreads(each: Sequence[Metrics]) -> dict[str, dict[str, Any]]:
    """`spread` of each number that replicas have, such as `loss` and `accuracy`.

    One may lack what others have. What is no measurement, such as a count, is left out.
    """
    names = dict.fromkeys(name for metrics in each for name in metrics)
    columns = {name: [metrics.get(name) for metrics in each] for name in names}
    return {
        name: spread(values)
        for name, values in columns.items()
        if not any(isinstance(value, bool | str | int) for value in values)
    }


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


def mean(each: Sequence[Metrics]) -> dict[str, Any]:
    """The metrics of one replica, with the means over all in place of its own.

    With `accuracy_deviation`, and `replicas`, their number.
    """
    found = spreads(each)
    means = {name: of["mean"] for name, of in found.items()}
    beside = {"accuracy_deviation": found["accuracy"]["deviation"], "replicas": len(each)}
    return {**each[0], **means, **beside}
