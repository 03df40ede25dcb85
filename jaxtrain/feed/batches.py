"""A split's batches on their way to a compiled step."""

from collections.abc import Iterable, Iterator
from concurrent import futures
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxtrain import data
from jaxtrain.config.schema import DataConfig
from jaxtrain.feed.form import Step, by_device, calls_by_device, form
from jaxtrain.parallel.compile import Compiled, compiled
from jaxtrain.parallel.mesh import local_rows, over_devices, over_rows, replicated
from jaxtrain.step import Resident


class Feed:
    """Batches of one split.

    A resident split is read and copied to every device once, and a batch is then int32 indices
    `[batch]`; otherwise a batch is a `data.Batch`, of which every process reads the rows of its
    own devices, ahead in threads.
    """

    def __init__(
        self, split: data.Split, config: DataConfig, mesh: Mesh, mode: str = "jit"
    ) -> None:
        """Begins to copy the split to the devices if `is_resident` says so.

        Args:
            split: the examples.
            config: where they are kept.
            mesh: the devices.
            mode: as in `Form`; evaluation runs under `jit` in any case.
        """
        self._split = split
        self._config = config
        self._mesh = mesh
        self._form = form(split, config, mesh, mode)
        self._resident: futures.Future[Resident] | None = None
        if self._form.resident:
            # Beside the compilation, for which the shapes are enough.
            pool = futures.ThreadPoolExecutor(1)
            self._resident = pool.submit(_copied, split, mesh)
            pool.shutdown(wait=False)

    def compile(self, step: Step, variables: Any, rows: int) -> Compiled:
        """Compiles `step(variables, batch)` for this feed's batches.

        Args:
            step: a pure step, whose results are to be replicated.
            variables: abstract, with shardings.
            rows: rows of the global batch; they divide over the mesh.

        Returns:
            A function of (variables, one element of `batches`, whether to stop).

        Raises:
            DataError: the split was to be copied to the devices, and cannot be read.
        """
        return self._compiled(self._form.lower(step, variables, rows))

    def compile_calls(self, step: Step, state: Any, rows: int, most: int) -> Compiled:
        """Compiles a run of training steps, `step(state, batch)` to (state, metrics).

        Args:
            step: a pure step. Its state is overwritten.
            state: abstract, with shardings.
            rows: rows of the global batch; they divide over the mesh.
            most: the most steps in one call; 1 unless the split is resident.

        Returns:
            A function of (state, one feed of `calls`, whether to stop) that gives the last step's
            results. They do not depend on how the steps are parted into calls.

        Raises:
            DataError: as for `compile`.
        """
        return self._compiled(self._form.lower_calls(step, state, rows, most))

    def batches(self, index_batches: data.IndexBatches, start: int = 0) -> Iterator[Any]:
        """The batches from item `start` of `index_batches` to its last."""
        mode = self._form.mode
        if self._resident is not None:
            feeds: Iterator[Any] = (
                index_batches[number].astype(np.int32)
                for number in range(start, len(index_batches))
            )
        else:
            rows = len(index_batches[start]) if start < len(index_batches) else 0
            held = local_rows(rows, self._mesh)
            feeds = data.load(
                self._split,
                index_batches,
                start=start,
                threads=data.readers(self._config.threads),
                ahead=self._config.ahead,
                rows=held,
            )
            if len(held) < rows:
                return (_spread(own, held, rows, self._mesh, mode) for own in feeds)
        if mode == "pmap":
            return (by_device(feed, self._mesh.size) for feed in feeds)
        return feeds

    def calls(
        self, index_batches: data.IndexBatches, steps: Iterable[range], most: int
    ) -> Iterator[tuple[range, Any]]:
        """The steps of each call, counted from 1, and what to feed it.

        Args:
            index_batches: item i holds the indices of step i + 1.
            steps: the steps of the calls, each run right after the one before.
            most: as for `compile_calls`.
        """
        if most > 1:
            for call in steps:
                feed = _stacked(index_batches, call, most)
                mapped = self._form.mode == "pmap"
                yield call, calls_by_device(feed, self._mesh.size) if mapped else feed
            return
        batches: Iterator[Any] | None = None
        for call in steps:
            if batches is None:
                batches = self.batches(index_batches, call.start - 1)
            yield call, next(batches)

    def _compiled(self, lowered: jax.stages.Lowered) -> Compiled:
        # The copy is waited for after the compilation.
        program = lowered.compile()
        resident = None if self._resident is None else self._resident.result()
        return compiled(program, self._mesh, resident)


def _spread(own: data.Batch, held: np.ndarray, rows: int, mesh: Mesh, mode: str) -> data.Batch:
    """The global batch, of which this process has read the rows `held`."""
    each = rows // mesh.size if mode == "pmap" else 1
    lead = (mesh.size, each) if mode == "pmap" else (rows,)
    sharding = over_devices(mesh) if mode == "pmap" else over_rows(mesh)

    def spread(leaf: np.ndarray) -> jax.Array:
        def part(index: Any) -> np.ndarray:
            first, last, _ = index[0].indices(lead[0])
            at = np.searchsorted(held, first * each)
            return leaf[at : at + (last - first) * each].reshape(
                last - first, *lead[1:], *leaf.shape[1:]
            )

        return jax.make_array_from_callback((*lead, *leaf.shape[1:]), sharding, part)

    return data.Batch(*map(spread, own))


def _copied(split: data.Split, mesh: Mesh) -> Resident:
    """The split on every device; each process has read all of it."""
    whole = Resident(split.images, split.labels)
    everywhere = replicated(mesh)
    if len(mesh.local_devices) == mesh.size:
        copied: Resident = jax.device_put(whole, everywhere)
        return copied
    # `device_put` would compare what the processes have, byte for byte.
    return jax.tree.map(
        lambda x: jax.make_array_from_callback(x.shape, everywhere, lambda index: x[index]), whole
    )


def _stacked(
    index_batches: data.IndexBatches, steps: range, most: int
) -> tuple[np.ndarray, np.int32]:
    """The indices of some steps, int32 `[most, batch]`, and how many of the first rows count."""
    first = index_batches[steps.start - 1]
    indices = np.zeros((most, len(first)), np.int32)
    for row, step in enumerate(steps):
        indices[row] = index_batches[step - 1]
    return indices, np.int32(len(steps))
