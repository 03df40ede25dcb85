"""The exact pass of `jaxtrain eval`: of a run's replicas, or of an exported model."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxtrain import data, evaluation, runtimes
from jaxtrain.config import Config
from jaxtrain.evaluation import Evaluator, Results
from jaxtrain.predictor import Exported, Restored
from jaxtrain.replicas import stacked
from jaxtrain.report import Console, mean, replica_name, summed_up
from jaxtrain.tasks import Task


@dataclasses.dataclass(frozen=True)
class Scored:
    """What came of the exact pass.

    Attributes:
        results: of each example, by the model.
        metrics: their summary.
        norms: gives norms of examples' gradients; None: such a model has none.
        shown: metrics for a person; of a run with replicas those of all.
        replicas: those for the result; empty: there is one model.
    """

    results: Results
    metrics: dict[str, Any]
    norms: Callable[[NDArray[np.int64]], NDArray[np.float32]] | None
    shown: list[Mapping[str, Any]]
    replicas: dict[str, Any]


def score(
    model: Restored | Exported, split: data.Split, config: Config, task: Task, console: Console
) -> Scored:
    """The exact pass over a split.

    Args:
        model: what is evaluated; of a run with replicas all are.
        split: the examples.
        config: of the run, with what the command line sets.
        task: what is kept of each example.
        console: shows how far it is.

    Raises:
        NonFiniteError: outputs of the model are not finite, but in a sweep.
        UsageError: `eval.flip_average`, but examples are no images.
    """
    flip_average = config.eval.flip_average
    summarise = functools.partial(evaluation.summary, task, split, flip_average=flip_average)
    tick = functools.partial(console.batches, "evaluate")
    console.pause("evaluate")
    if isinstance(model, Exported):
        evaluation.check_flip(split, flip_average=flip_average)
        logits = runtimes.flip_averaged(model.logits) if flip_average else model.logits
        results = runtimes.score(logits, task, split, config.eval.batch_size, tick)
        console.unpause()
        metrics = summarise(results)
        return Scored(results, metrics, norms=None, shown=[metrics], replicas={})
    evaluator = _evaluator(model, split, config, task)
    variables = model.variables if model.every is None else model.every
    every = evaluator.results(variables, tick)
    assert every is not None, "nobody can ask it to stop"
    console.unpause()
    each = evaluation.summaries(summarise, model.variants, every)
    shown, replicas = _of_replicas(model, each) if len(each) > 1 else (each, {})
    norms = functools.partial(_norms, evaluator, model.variables, console)
    return Scored(every[model.replica], each[model.replica], norms, [*shown], replicas)


def _evaluator(model: Restored, split: data.Split, config: Config, task: Task) -> Evaluator:
    count = None if model.every is None else len(model.variants)
    return Evaluator(
        model=model.model,
        normalise=model.normalise,
        task=task,
        split=split,
        config=config.data,
        batch_size=config.eval.batch_size,
        mesh=model.mesh,
        variables=model.abstract if count is None else stacked(model.abstract, count),
        replicas=count,
        unroll=model.unrolls,
        flip_average=config.eval.flip_average,
    )


def _of_replicas(
    model: Restored, each: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The numbers of all replicas: for a person, and for the result."""
    differences = [variant.difference for variant in model.variants]
    named = zip(each, map(replica_name, differences), strict=True)
    shown = [{**metrics, "replica": name} for metrics, name in named]
    shown[model.replica]["replica"] += " (the run's model)"
    if not model.variants[0].is_of_sweep:
        shown.append(mean(each))
    return shown, {"replicas": summed_up(differences, {"eval": each})}


def _norms(
    evaluator: Evaluator, variables: Any, console: Console, indices: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Those of some examples' gradients."""
    console.pause("gradients")
    tick = functools.partial(console.batches, "gradients")
    norms = evaluator.gradient_norms(variables, indices, tick)
    console.unpause()
    return norms
