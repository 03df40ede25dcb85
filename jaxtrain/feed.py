"""How a split's batches reach a compiled step: from the devices' memory or from the host's."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxtrain import data
from jaxtrain.config.schema import DataConfig
from jaxtrain.parallel.compile import compile_step
from jaxtrain.parallel.mesh import replicated
from jaxtrain.step import Resident, gather

# With data.cache=auto, a split that takes no more than this stays on the devices. CPU devices
# share the host's memory, so there the copies are added up.
AUTO_RESIDENT_BYTES = 2**30


class Feed:
    """Batches of one split.

    A resident split is copied to every device once, and a batch is then int32 indices `[batch]`;
    otherwise a batch is a `data.Batch` of NumPy arrays, read ahead in threads.
    """

    def __init__(self, split: data.Split, config: DataConfig, mesh: Mesh) -> None:
        """Copies the split to the devices if `config.cache` says so."""
        self._split = split
        self._config = config
        self._mesh = mesh
        self._resident: Resident | None = None
        if _is_resident(split, config.cache, mesh):
            host = Resident(split.images, split.labels)
            self._resident = jax.device_put(host, replicated(mesh))

    def compile(
        self,
        step: Callable[[Any, data.Batch], Any],
        state: Any,
        rows: int,
        *,
        donate: bool,
    ) -> Callable[[Any, Any], Any]:
        """Compiles `step(state, batch)` for this feed's batches.

        Args:
            step: a pure step.
            state: abstract.
            rows: rows of the global batch; they divide over the mesh.
            donate: whether `state` may be overwritten.

        Returns:
            A function of (state, one element of `batches`).
        """
        resident = self._resident

        def with_batch(state: Any, resident: Resident | None, feed: Any) -> Any:
            return step(state, feed if resident is None else gather(resident, feed))

        abstract = jax.ShapeDtypeStruct((rows,), np.int32)
        feed = self._abstract_batch(rows) if resident is None else abstract
        compiled = compile_step(with_batch, self._mesh, state, resident, feed, donate=donate)
        return lambda state, feed: compiled(state, resident, feed)

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

    def _abstract_batch(self, rows: int) -> data.Batch:
        return data.Batch(
            image=jax.ShapeDtypeStruct((rows, *self._split.image_shape), np.uint8),
            label=jax.ShapeDtypeStruct((rows,), np.int32),
            mask=jax.ShapeDtypeStruct((rows,), np.bool_),
            row=jax.ShapeDtypeStruct((rows,), np.int32),
        )


def _is_resident(split: data.Split, cache: str, mesh: Mesh) -> bool:
    if cache != "auto":
        return cache == "device"
    devices = mesh.devices.ravel()
    copies = len(devices) if devices[0].platform == "cpu" else 1
    return split.nbytes * copies <= AUTO_RESIDENT_BYTES
