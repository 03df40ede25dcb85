"""The exact pass: every example of a split counted once, whatever the batch and the devices."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from jaxtrain import data
from jaxtrain.config import Variant
from jaxtrain.config.schema import DataConfig
from jaxtrain.data.examples import is_image, shape_text
from jaxtrain.errors import NonFiniteError, UsageError
from jaxtrain.feed import Feed
from jaxtrain.gradient_norms import norms_rows, norms_step
from jaxtrain.models import Model
from jaxtrain.normalise import Normalise
from jaxtrain.parallel.compile import Compiled, Sent
from jaxtrain.parallel.in_flight import InFlight
from jaxtrain.parallel.mesh import AnyMesh, pad_rows
from jaxtrain.replicas import map_replicas
from jaxtrain.step import eval_step
from jaxtrain.tasks import Task

Results = dict[str, np.ndarray]


def batch_rows(
    batch_size: int, examples: int, mesh: AnyMesh, *, replicas: int | None, unroll: bool
) -> int:
    """Rows of an evaluation's batches: what the devices divide, and no more than it needs.

    Args:
        batch_size: of one replica.
        examples: of the split.
        mesh: the devices.
        replicas: as of `Evaluator`; those that see a batch at once share the memory of one.
        unroll: likewise; then none do.
    """
    at_once = 1 if replicas is None or unroll else replicas
    return pad_rows(min(max(batch_size // at_once, 1), examples), mesh)


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
        replicas: int | None = None,
        unroll: bool = False,
        flip_average: bool = False,
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
            variables: abstract, parameters and collections.
            replicas: of how many replicas those are, stacked; None: of one model. They differ in
                nothing that evaluation knows of.
            unroll: as of `map_replicas`.
            flip_average: see `eval_step`.

        Raises:
            UsageError: `flip_average`, but examples are no images.
        """
        check_flip(split, flip_average=flip_average)
        self.split = split
        self._flip_average = flip_average
        self._task = task
        self._mesh = mesh
        rows = batch_rows(batch_size, split.size, mesh, replicas=replicas, unroll=unroll)
        self._indices = data.eval_indices(split.size, rows)
        self._feed = Feed(split, config, mesh)
        self._replicas = replicas
        step = functools.partial(eval_step, model, normalise, task, flip_average=flip_average)
        if replicas is not None:
            step = functools.partial(map_replicas, step, count=replicas, unroll=unroll)
        self._step = self._feed.compile(step, variables, rows)
        self._norms = functools.partial(
            norms_step, model, normalise, task, mesh=mesh, flip_average=flip_average
        )

    def results(
        self,
        variables: Any,
        tick: Callable[[int, int], None],
        asked: Callable[[], bool] = lambda: False,
    ) -> list[Results] | None:
        """The arrays of `Task.results` for every example, in data order, each `[examples]`.

        Args:
            variables: parameters and collections.
            tick: told how many of how many batches were sent.
            asked: whether this process was asked to stop.

        Returns:
            Those of each replica, of one model a list of one; None if a process was asked to stop
            while batches were left, then on all of them.
        """
        kept = self._collected(self._step, variables, self._indices, tick, asked)
        if kept is None:
            return None
        counted = len(kept["correct"])
        if counted != self.split.size:
            raise RuntimeError(f"evaluation counted {counted} of {self.split.size} examples")
        if self._replicas is None:
            return [kept]
        return [{name: of[:, k] for name, of in kept.items()} for k in range(self._replicas)]

    def gradient_norms(
        self, variables: Any, indices: NDArray[np.int64], tick: Callable[[int, int], None]
    ) -> NDArray[np.float32]:
        """The norm of the gradient of each example's own loss, float32 `[n]`; see `norms_step`.

        Args:
            variables: parameters and collections, of one replica.
            indices: which examples, `[n]`, 1 or more.
            tick: told how many of how many batches were sent.
        """
        abstract = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), variables
        )
        rows = norms_rows(abstract["params"], len(indices), self._mesh)
        step = self._feed.compile(self._norms, abstract, rows)
        places = data.eval_indices(len(indices), rows)
        batches = np.where(places < 0, -1, indices[places])
        kept = self._collected(step, variables, batches, tick, lambda: False)
        assert kept is not None, "nobody asked it to stop"
        return kept["gradient_norm"]

    def _collected(
        self,
        step: Compiled,
        variables: Any,
        batches: NDArray[np.int64],
        tick: Callable[[int, int], None],
        asked: Callable[[], bool],
    ) -> Results | None:
        """What a step gives for the examples of all batches; None if it was asked to stop."""
        kept: list[Results] = []
        stopping = False

        def finish(sent: Sent) -> None:
            nonlocal stopping
            results, stops = jax.device_get(sent)  # in one transfer
            kept.append(_unmasked(results))
            stopping = stopping or bool(stops)

        in_flight: InFlight[Sent] = InFlight(finish)
        for number, feed in enumerate(self._feed.batches(batches), start=1):
            in_flight.make_room()
            if stopping:
                break
            in_flight.add(step(variables, feed, asked()))
            tick(number, len(batches))
        in_flight.drain()
        return joined(kept) if len(kept) == len(batches) else None

    def summary(self, results: Results) -> dict[str, Any]:
        """`summary` of the results of this pass."""
        return summary(self._task, self.split, results, flip_average=self._flip_average)


def check_flip(split: data.Split, *, flip_average: bool) -> None:
    """Refuses to mirror what is no image.

    Raises:
        UsageError: see above.
    """
    if flip_average and not is_image(split.image_shape):
        raise UsageError(
            "eval.flip_average=True needs images, but examples are "
            f"{shape_text(split.image_shape)}; set eval.flip_average=False"
        )


def summary(
    task: Task, split: data.Split, results: Results, *, flip_average: bool = False
) -> dict[str, Any]:
    """Loss, accuracy and count of the results of a split; and what else a person must know.

    Raises:
        NonFiniteError: some example's logits are not finite; an argmax would call it class 0.
    """
    bad = np.flatnonzero(~results["finite"])
    if len(bad):
        raise NonFiniteError(
            f"the model's outputs are NaN or infinite for {len(bad)} of "
            f"{len(results['finite'])} examples of split {split.name!r}, first for "
            f"example {bad[0]}; this evaluation was not recorded"
        )
    notes: dict[str, Any] = {"left_out": len(split.left_out)} if split.left_out else {}
    if flip_average:
        notes["flip_average"] = True
    return task.summary(results) | notes


def summaries(
    summarise: Callable[[Results], dict[str, Any]],
    variants: Sequence[Variant],
    every: Sequence[Results],
) -> list[dict[str, Any]]:
    """`summary` of each replica; in a sweep None for each number of one that diverged.

    Args:
        summarise: results to their summary.
        variants: the replicas.
        every: the results of each.

    Raises:
        NonFiniteError: as for `summary`, but in a sweep.
    """
    found = []
    for variant, results in zip(variants, every, strict=True):
        try:
            found.append(summarise(results))
        except NonFiniteError as error:
            if not variant.is_of_sweep:
                of = f"the replica with {variant}: " if len(variants) > 1 else ""
                raise NonFiniteError(f"{of}{error}") from error
            found.append({"loss": None, "accuracy": None, "count": len(results["correct"])})
    return found


def place_of(split: data.Split, index: int) -> str:
    """Where an example is, in words: its file, else its place in the split, as in `test[3]`."""
    return split.file_of(index) or f"{split.name}[{index}]"


def joined(parts: list[Results]) -> Results:
    """The results of all examples, of those of parts of them in order."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _unmasked(results: Results) -> Results:
    mask = results["mask"]
    if mask.ndim > 1:  # of replicas, for which it is the same
        mask = mask[:, 0]
    return {name: values[mask] for name, values in results.items() if name != "mask"}
