"""Batches read ahead in threads, for data that stays in host memory."""

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from jaxtrain.data.sampler import Interleaved, SampledBatches
from jaxtrain.data.split import Split
from jaxtrain.data.threads import reuse_freed_memory
from jaxtrain.errors import DataError

Array = Any  # NumPy's here; JAX's once a batch is on the device


class Batch(NamedTuple):
    """One step's examples, or the rows of it that one process reads.

    Attributes:
        image: uint8 `[B, H, W, C]`, or features float32 `[B, D]`; zeros where masked.
        label: int32 `[B]`; 0 where masked.
        mask: bool `[B]`; False for padding.
        row: int32 `[B]`; the row in the global batch.
    """

    image: Array
    label: Array
    mask: Array
    row: Array


class IndexBatches(Protocol):
    """Item i: example indices `[batch]` of the global batch of step i + 1; -1 is padding."""

    def __len__(self) -> int: ...
    def __getitem__(self, item: int, /) -> NDArray[np.int64]: ...


def load(
    split: Split,
    index_batches: IndexBatches,
    *,
    start: int = 0,
    threads: int,
    ahead: int,
    rows: slice | NDArray[np.integer] | None = None,
) -> Iterator[Batch]:
    """Reads batches in order, ahead of the caller, in daemon threads.

    What comes out depends on `split`, `index_batches` and `rows` alone. Reading begins with the
    first `next`. A thread that hangs in a read never keeps the process from ending.

    Args:
        split: where the examples are.
        index_batches: `Sampler.batches(...)`, which has row seeds too, or `eval_indices(...)`.
        start: the item to begin with (finished steps); costs nothing.
        threads: threads that read, 1 or more.
        ahead: batches read ahead, 1 or more, rounded up to a multiple of `threads`.
        rows: rows of the global batch to read; None for all.

    Yields:
        One `Batch` an item, `index_batches[start]` to the last.

    Raises:
        DataError: reading failed; raised in place of the batch that failed, and the iterator ends.
    """
    # Its import costs a second, and data that lies on the device does without.
    import grain  # noqa: PLC0415

    reuse_freed_memory()
    # Thread k reads items start + k, start + k + threads, ... Grain's own pool of threads is not
    # used: Python waits for such a pool when the process ends, for ever if a read hangs.
    reader = _Reader(split, index_batches, rows)
    queues: list[queue.Queue[Batch | Exception]] = []
    stopped = threading.Event()
    try:
        for thread in range(threads):
            items = grain.MapDataset.source(reader)[start + thread :: threads]
            batches = iter(items.to_iter_dataset(grain.ReadOptions(num_threads=0)))
            queues.append(queue.Queue(-(-ahead // threads)))
            arguments = (batches, queues[-1], stopped)
            threading.Thread(target=_fill, args=arguments, daemon=True).start()
        for count in range(len(reader) - start):
            batch = _next_of(queues[count % threads])
            if isinstance(batch, Exception):
                raise batch
            yield batch
    finally:
        stopped.set()
        for each in queues:
            while not each.empty():
                each.get()


def _next_of(batches: "queue.Queue[Batch | Exception]") -> Batch | Exception:
    """The next batch; wakes up now and then, or a signal might find no moment to be handled."""
    while True:
        with contextlib.suppress(queue.Empty):
            return batches.get(timeout=0.2)


def _fill(
    batches: Iterator[Batch], out: "queue.Queue[Batch | Exception]", stopped: threading.Event
) -> None:
    """Puts batches until they end, one fails, or the reader of `out` has stopped and emptied it."""
    try:
        for batch in batches:
            out.put(batch)
            if stopped.is_set():
                return
    except Exception as error:
        out.put(error)


class _Reader:
    """The batches as a Grain data source; never a None, which Grain would skip."""

    def __init__(
        self,
        split: Split,
        index_batches: IndexBatches,
        rows: slice | NDArray[np.integer] | None,
    ):
        self._split = split
        self._index_batches = index_batches
        self._rows = slice(None) if rows is None else rows

    def __len__(self) -> int:
        return len(self._index_batches)

    def __getitem__(self, item: int) -> Batch:
        try:
            return self._read(item)
        except Exception as error:
            said = str(error) if isinstance(error, DataError) else repr(error)
            raise DataError(
                f"batch {item + 1} of split {self._split.name} cannot be read: {said}"
            ) from error

    def _read(self, item: int) -> Batch:
        indices = self._index_batches[item]
        row = np.arange(len(indices), dtype=np.int32)[self._rows]
        indices = indices[row]
        mask = indices >= 0
        seeds = None
        if isinstance(self._index_batches, SampledBatches | Interleaved):
            seeds = self._index_batches.row_seeds(item)[row][mask]
        image = self._split.read(indices[mask], seeds)
        label = self._split.labels[indices[mask]]
        if not mask.all():
            image, label = _pad(image, mask), _pad(label, mask)
        return Batch(image, label, mask, row)


def _pad(values: NDArray[Any], mask: NDArray[np.bool_]) -> NDArray[Any]:
    """Spreads `values` over the rows where `mask` is True; zeros elsewhere."""
    padded = np.zeros((len(mask), *values.shape[1:]), values.dtype)
    padded[mask] = values
    return padded
