"""How a split's batches reach a compiled step: from the devices' memory or from the host's."""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxtrain import data
from jaxtrain.config.schema import DataConfig
from jaxtrain.parallel.compile import PMAP_AXIS, Compiled, compiled, lower_jit, lower_pmap
from jaxtrain.parallel.loop import repeated
from jaxtrain.parallel.mesh import (
    AnyMesh,
    local_rows,
    on_cpu,
    over_columns,
    over_devices,
    over_rows,
    replicated,
)
from jaxtrain.step import Resident, gather

# With data.cache=auto, a split that takes no more than this stays on the devices. CPU devices
# share the host's memory, so there the copies are added up.
AUTO_RESIDENT_BYTES = 2**30

Step = Callable[[Any, data.Batch], Any]


@dataclasses.dataclass(frozen=True)
class Form:
    """What a step is fed, as far as a program needs to know it.

    Attributes:
        mesh: the devices.
        examples: of the split.
        image_shape: of one example.
        resident: whether the examples lie on the devices and a batch is their indices.
        mode: how training steps run: `jit`; or `pmap`, for a step that sums over its axis.
    """

    mesh: AnyMesh
    examples: int
    image_shape: tuple[int, ...]
    resident: bool
    mode: str

    def lower(self, step: Step, variables: Any, rows: int) -> jax.stages.Lowered:
        """`step(variables, batch)`, whose results are to be replicated, over batches of `rows`."""

        def with_batch(variables: Any, resident: Resident | None, feed: Any) -> Any:
            return step(variables, feed if resident is None else gather(resident, feed))

        return lower_jit(
            with_batch,
            self.mesh,
            variables,
            self._abstract_resident(),
            self._abstract_feed(rows),
            feed_sharding=over_rows(self.mesh),
            keeps_state=False,
        )

    def lower_calls(self, step: Step, state: Any, rows: int, most: int) -> jax.stages.Lowered:
        """A run of training steps, `step(state, batch)` to (state, metrics); see `Feed`."""
        # Under pmap each device sees its own rows of the batch.
        offset = rows // self.mesh.size if self.mode == "pmap" else 0

        def batch(resident: Resident | None, feed: Any) -> data.Batch:
            first = jax.lax.axis_index(PMAP_AXIS) * offset if offset else 0
            return feed if resident is None else gather(resident, feed, first)

        def one(state: Any, resident: Resident | None, feed: Any) -> Any:
            return step(state, batch(resident, feed))

        def several(state: Any, resident: Resident, feed: Any) -> Any:
            indices, count = feed
            return repeated(lambda i, s: step(s, batch(resident, indices[i])), state, count)

        feed: Any = self._abstract_feed(rows)
        sharding: Any = over_rows(self.mesh)
        if most > 1:
            feed = (_indices(most, rows), _indices())
            sharding = (over_columns(self.mesh), replicated(self.mesh))
        program = one if most == 1 else several
        resident = self._abstract_resident()
        if self.mode == "pmap":
            assert isinstance(self.mesh, Mesh), "pmap is compiled for real devices"
            parted = by_device if most == 1 else calls_by_device
            feed = jax.eval_shape(lambda feed: parted(feed, self.mesh.size), feed)
            return lower_pmap(program, self.mesh, state, resident, feed)
        return lower_jit(
            program,
            self.mesh,
            state,
            resident,
            feed,
            feed_sharding=sharding,
            keeps_state=True,
        )

    def _abstract_feed(self, rows: int) -> Any:
        if self.resident:
            return _indices(rows)
        return data.Batch(
            image=jax.ShapeDtypeStruct((rows, *self.image_shape), np.uint8),
            label=_indices(rows),
            mask=jax.ShapeDtypeStruct((rows,), np.bool_),
            row=_indices(rows),
        )

    def _abstract_resident(self) -> Resident | None:
        if not self.resident:
            return None
        everywhere = replicated(self.mesh)
        shape = (self.examples, *self.image_shape)
        return Resident(
            image=jax.ShapeDtypeStruct(shape, np.uint8, sharding=everywhere),
            label=jax.ShapeDtypeStruct((self.examples,), np.int32, sharding=everywhere),
        )


def form(split: data.Split, config: DataConfig, mesh: AnyMesh, mode: str = "jit") -> Form:
    """How a split is fed over a mesh."""
    resident = is_resident(split, config.cache, mesh)
    return Form(mesh, split.size, split.image_shape, resident, mode)


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
                threads=self._config.threads,
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


def is_resident(split: data.Split, cache: str, mesh: AnyMesh) -> bool:
    """Whether `data.cache` puts this split on the devices; never one that is random to read.

    The same on all processes, also where one has more devices than another.
    """
    if split.random:
        return False
    if cache != "auto":
        return cache == "device"
    copies = 1
    if isinstance(mesh, Mesh) and on_cpu(mesh):
        hosts = collections.Counter(device.process_index for device in mesh.devices.flat)
        copies = max(hosts.values())
    return split.nbytes * copies <= AUTO_RESIDENT_BYTES


def by_device(feed: Any, devices: int) -> Any:
    """Arrays `[rows, ...]` as `[devices, rows of each, ...]`."""
    return jax.tree.map(lambda x: x.reshape(devices, -1, *x.shape[1:]), feed)


def calls_by_device(feed: tuple[Any, Any], devices: int) -> tuple[Any, Any]:
    """Indices `[steps, rows]` as `[devices, steps, rows of each]`, and their count for each."""
    indices, count = feed
    parted = indices.reshape(len(indices), devices, -1).swapaxes(0, 1)
    return parted, count.reshape(1).repeat(devices)


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
