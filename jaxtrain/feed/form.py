"""What a compiled step is fed, as far as a program needs to know it."""

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxtrain import data
from jaxtrain.config.schema import DataConfig
from jaxtrain.data import examples
from jaxtrain.parallel.compile import PMAP_AXIS, lower_jit, lower_pmap
from jaxtrain.parallel.loop import repeated
from jaxtrain.parallel.mesh import AnyMesh, on_cpu, over_columns, over_rows, replicated
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
        image_shape: of one example; its dtype goes by it.
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

    @property
    def _dtype(self) -> np.dtype[Any]:
        return examples.dtype_of(self.image_shape)

    def _abstract_feed(self, rows: int) -> Any:
        if self.resident:
            return _indices(rows)
        return data.Batch(
            image=jax.ShapeDtypeStruct((rows, *self.image_shape), self._dtype),
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
            image=jax.ShapeDtypeStruct(shape, self._dtype, sharding=everywhere),
            label=jax.ShapeDtypeStruct((self.examples,), np.int32, sharding=everywhere),
        )


def form(split: data.Split, config: DataConfig, mesh: AnyMesh, mode: str = "jit") -> Form:
    """How a split is fed over a mesh."""
    resident = is_resident(split, config.cache, mesh)
    return Form(mesh, split.size, split.image_shape, resident, mode)


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


def _indices(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.int32)
