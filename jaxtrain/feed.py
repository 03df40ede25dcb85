"""How a split's batches reach a compiled step: from the devices' memory or from the host's."""

from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxtrain import data
from jaxtrain.config.schema import DataConfig
from jaxtrain.parallel.compile import compile_step
from jaxtrain.parallel.loop import repeated
from jaxtrain.parallel.mesh import on_cpu, over_columns, over_rows, replicated
from jaxtrain.step import Resident, gather

# With data.cache=auto, a split that takes no more than this stays on the devices. CPU devices
# share the host's memory, so there the copies are added up.
AUTO_RESIDENT_BYTES = 2**30

Step = Callable[[Any, data.Batch], Any]
Compiled = Callable[[Any, Any], Any]


class Feed:
    """Batches of one split.

    A resident split is read and copied to every device once, and a batch is then int32 indices
    `[batch]`; otherwise a batch is a `data.Batch` of NumPy arrays, read ahead in threads.
    """

    def __init__(self, split: data.Split, config: DataConfig, mesh: Mesh) -> None:
        """Begins to copy the split to the devices if `is_resident` says so."""
        self._split = split
        self._config = config
        self._mesh = mesh
        self._resident: futures.Future[Resident] | None = None
        if is_resident(split, config.cache, mesh):
            # Beside the compilation, for which the shapes are enough.
            pool = futures.ThreadPoolExecutor(1)
            self._resident = pool.submit(_copied, split, mesh)
            pool.shutdown(wait=False)

    def compile(self, step: Step, state: Any, rows: int, *, donate: bool = False) -> Compiled:
        """Compiles `step(state, batch)` for this feed's batches.

        Args:
            step: a pure step.
            state: abstract.
            rows: rows of the global batch; they divide over the mesh.
            donate: whether `state` may be overwritten.

        Returns:
            A function of (state, one element of `batches`).

        Raises:
            DataError: the split was to be copied to the devices, and cannot be read.
        """

        def with_batch(state: Any, resident: Resident | None, feed: Any) -> Any:
            return step(state, feed if resident is None else gather(resident, feed))

        return self._compile(
            with_batch,
            state,
            self._abstract_batch(rows) if self._resident is None else _indices(rows),
            over_rows(self._mesh),
            donate,
        )

    def compile_calls(self, step: Step, state: Any, rows: int, most: int) -> Compiled:
        """Compiles a run of training steps, `step(state, batch)` to (state, metrics).

        Args:
            step: a pure step. Its state is overwritten.
            state: abstract.
            rows: rows of the global batch; they divide over the mesh.
            most: the most steps in one call; 1 unless the split is resident.

        Returns:
            A function of (state, one feed of `calls`) that gives the last step's results. They
            do not depend on how the steps are parted into calls.

        Raises:
            DataError: as for `compile`.
        """
        if most == 1:
            return self.compile(step, state, rows, donate=True)

        def with_batches(state: Any, resident: Resident, feed: Any) -> Any:
            indices, count = feed
            return repeated(lambda i, s: step(s, gather(resident, indices[i])), state, count)

        return self._compile(
            with_batches,
            state,
            (_indices(most, rows), _indices()),
            (over_columns(self._mesh), replicated(self._mesh)),
            donate=True,
        )

    def batches(self, index_batches: data.IndexBatches, start: int = 0) -> Iterator[Any]:
        """The batches from item `start` of `index_batches` to its last."""
        if self._resident is not None:
            numbers = range(start, len(index_batches))
            return (index_batches[number].astype(np.int32) for number in numbers)
        return data.load(
            self._split,
            index_batches,
            start=start,
            threads=self._config.threads,
            ahead=self._config.ahead,
        )

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
                yield call, _stacked(index_batches, call, most)
            return
        batches: Iterator[Any] | None = None
        for call in steps:
            if batches is None:
                batches = self.batches(index_batches, call.start - 1)
            yield call, next(batches)

    def _compile(
        self, step: Callable[..., Any], state: Any, feed: Any, sharding: Any, donate: bool
    ) -> Compiled:
        abstract = None if self._resident is None else _abstract_resident(self._split)
        compiled = compile_step(
            step, self._mesh, state, abstract, feed, feed_sharding=sharding, donate=donate
        )
        resident = None if self._resident is None else self._resident.result()
        return lambda state, feed: compiled(state, resident, feed)

    def _abstract_batch(self, rows: int) -> data.Batch:
        return data.Batch(
            image=jax.ShapeDtypeStruct((rows, *self._split.image_shape), np.uint8),
            label=jax.ShapeDtypeStruct((rows,), np.int32),
            mask=jax.ShapeDtypeStruct((rows,), np.bool_),
            row=jax.ShapeDtypeStruct((rows,), np.int32),
        )


def is_resident(split: data.Split, cache: str, mesh: Mesh) -> bool:
    """Whether `data.cache` puts this split on the devices; never one that is random to read."""
    if split.random:
        return False
    if cache != "auto":
        return cache == "device"
    copies = mesh.size if on_cpu(mesh) else 1
    return split.nbytes * copies <= AUTO_RESIDENT_BYTES


def _copied(split: data.Split, mesh: Mesh) -> Resident:
    resident: Resident = jax.device_put(Resident(split.images, split.labels), replicated(mesh))
    return resident


def _abstract_resident(split: data.Split) -> Resident:
    return Resident(
        image=jax.ShapeDtypeStruct((split.size, *split.image_shape), np.uint8),
        label=jax.ShapeDtypeStruct((split.size,), np.int32),
    )


def _indices(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.int32)


def _stacked(
    index_batches: data.IndexBatches, steps: range, most: int
) -> tuple[np.ndarray, np.int32]:
    """The indices of some steps, int32 `[most, batch]`, and how many of the first rows count."""
    first = index_batches[steps.start - 1]
    indices = np.zeros((most, len(first)), np.int32)
    for row, step in enumerate(steps):
        indices[row] = index_batches[step - 1]
    return indices, np.int32(len(steps))
