"""The exact pass of `jaxtrain eval`: of a run's model, of all its models, or of an exported one."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxtrain import data, evaluation
from jaxtrain.config import Config
from jaxtrain.evaluation import Evaluator, Results
from jaxtrain.predictor import Exported, Restored
from jaxtrain.replicas import together
from jaxtrain.report import Console, mean, model_text, spreads, values_alone
from jaxtrain.tasks import Task


@dataclasses.dataclass(frozen=True)
class Scored:
    """What came of the exact pass.

    Attributes:
        results: of each example, by the model.
        metrics: their summary.
        norms: gives norms of examples' gradients; None: such a model has none.
        shown: metrics for a person; of a run of several models those of all.
        replicas: those for the result; empty: there is one model.
    """

    results: Results
    metrics: dict[str, Any]
    norms: Callable[[NDArray[np.int64]], NDArray[np.float32]] | None
    shown: list[dict[str, Any]]
    replicas: dict[str, Any]


def score(
    model: Restored | Exported, split: data.Split, config: Config, task: Task, console: Console
) -> Scored:
    """The exact pass over a split.

    Args:
        model: what is evaluated; of a run of several models all are.
        split: the examples.
        config: of the run, with what the command line sets.
        task: what is kept of each example.
        console: shows how far it is.

    Raises:
        NonFiniteError: outputs of the model are not finite.
        UsageError: `eval.flip_average`, but examples are no images.
    """
    flip_average = config.eval.flip_average
    tick = functools.partial(console.batches, "evaluate")
    summarise = functools.partial(evaluation.summary, task, split, flip_average=flip_average)
    console.pause("evaluate")
    if isinstance(model, Exported):
        evaluation.check_flip(split, flip_average=flip_average)
        logits = evaluation.flip_averaged(model.logits) if flip_average else model.logits
        results = evaluation.score(logits, task, split, config.eval.batch_size, tick)
        console.unpause()
        metrics = summarise(results)
        return Scored(results, metrics, norms=None, shown=[metrics], replicas={})
    several = None if model.every is None else len(model.variants)
    evaluator = Evaluator(
        model=model.model,
        normalise=model.normalise,
        task=task,
        split=split,
        config=config.data,
        batch_size=config.eval.batch_size,
        mesh=model.mesh,
        variables=model.abstract if several is None else together(model.abstract, several),
        models=several,
        unroll=model.unrolls,
        flip_average=flip_average,
    )
    every = evaluator.results(model.variables if several is None else model.every, tick)
    assert every is not None, "nobody can ask it to stop"
    console.unpause()
    results = every[model.replica]
    metrics = summarise(results)
    norms = functools.partial(_norms, evaluator, model.variables, console)
    if several is None:
        return Scored(results, metrics, norms, shown=[metrics], replicas={})
    each = evaluation.summaries(summarise, model.variants, every)
    return Scored(results, metrics, norms, *_of_several(model, each))


def _of_several(
    model: Restored, each: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The numbers of all models of a run: for a person, and for the result."""
    variants = model.variants
    shown = [
        {**metrics, "model": model_text({variant.key: variant.value})}
        for variant, metrics in zip(variants, each, strict=True)
    ]
    shown[model.replica]["model"] += " (the run's model)"
    found = spreads(each)
    if variants[0].is_of_sweep:
        found = values_alone(found)
    else:
        shown.append(mean(each))
    return shown, {"replicas": {variants[0].key: [x.value for x in variants], "eval": found}}


def _norms(
    evaluator: Evaluator, variables: Any, console: Console, indices: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Those of some examples' gradients."""
    console.pause("gradients")
    tick = functools.partial(console.batches, "gradients")
    norms = evaluator.gradient_norms(variables, indices, tick)
    console.unpause()
    return norms
