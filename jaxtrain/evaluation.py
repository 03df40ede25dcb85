"""The exact pass: every example of a split counted once, whatever the batch and the devices."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxtrain import data
from jaxtrain.config.schema import DataConfig
from jaxtrain.errors import NonFiniteError
from jaxtrain.feed import Feed
from jaxtrain.models import Model
from jaxtrain.parallel.compile import Sent
from jaxtrain.parallel.in_flight import InFlight
from jaxtrain.parallel.mesh import AnyMesh, pad_rows
from jaxtrain.step import Normalise, eval_step
from jaxtrain.tasks import Task

Results = dict[str, np.ndarray]


def batch_rows(batch_size: int, examples: int, mesh: AnyMesh) -> int:
    """Rows of an evaluation's batches: what the devices divide, and no more than it needs."""
    return pad_rows(min(batch_size, examples), mesh)


class Evaluator:
    """Evaluates any weights of one model on one split; compiled once, at construction."""

    def __init__(
        self,
        *,
        model: Model,
        normalise: Normalise,
        task: Task,
        split: data.Split,
        config: DataConfig,
        batch_size: int,
        mesh: Mesh,
        variables: Any,
    ) -> None:
        """Compiles the pass.

        Args:
            model: the network.
            normalise: what it sees of an image.
            task: what is kept of each example.
            split: the examples.
            config: where they are kept.
            batch_size: rows of a batch over all devices; raised to a multiple of the devices, and
                lowered to what the split needs.
            mesh: the devices.
            variables: abstract `TrainState.model`.
        """
        self.split = split
        self._task = task
        rows = batch_rows(batch_size, split.size, mesh)
        self._indices = data.eval_indices(split.size, rows)
        self._feed = Feed(split, config, mesh)
        step = functools.partial(eval_step, model, normalise, task)
        self._step = self._feed.compile(step, variables, rows)

    def results(
        self,
        variables: Any,
        tick: Callable[[int, int], None],
        asked: Callable[[], bool] = lambda: False,
    ) -> Results | None:
        """The arrays of `Task.results` for every example, in data order, each `[examples]`.

        Args:
            variables: `TrainState.model`.
            tick: told how many of how many batches were sent.
            asked: whether this process was asked to stop.

        Returns:
            None if a process was asked to stop while batches were left; then on all of them.
        """
        kept: list[Results] = []
        stopping = False

        def finish(sent: Sent) -> None:
            nonlocal stopping
            results, stops = jax.device_get(sent)  # in one transfer
            kept.append(_unmasked(results))
            stopping = stopping or bool(stops)

        in_flight: InFlight[Sent] = InFlight(finish)
        feeds = self._feed.batches(self._indices)
        for number, feed in enumerate(feeds, start=1):
            in_flight.make_room()
            if stopping:
                break
            in_flight.add(self._step(variables, feed, asked()))
            tick(number, len(self._indices))
        in_flight.drain()
        if len(kept) < len(self._indices):
            return None
        joined = {name: np.concatenate([part[name] for part in kept]) for name in kept[0]}
        counted = len(joined["correct"])
        if counted != self.split.size:
            raise RuntimeError(f"evaluation counted {counted} of {self.split.size} examples")
        return joined

    def summary(self, results: Results) -> dict[str, Any]:
        """Loss, accuracy and count of `results`.

        Raises:
            NonFiniteError: some example's logits are not finite; an argmax would call it class 0.
        """
        bad = np.flatnonzero(~results["finite"])
        if len(bad):
            raise NonFiniteError(
                f"the model's outputs are NaN or infinite for {len(bad)} of "
                f"{len(results['finite'])} examples of split {self.split.name!r}, first for "
                f"example {bad[0]}; "
                "this evaluation was not recorded"
            )
        return self._task.summary(results)


def _unmasked(results: Results) -> Results:
    mask = results["mask"]
    return {name: values[mask] for name, values in results.items() if name != "mask"}
