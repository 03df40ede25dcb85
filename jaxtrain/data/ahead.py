"""Images or features read ahead in threads, where some may be bad."""

import collections
import contextlib
import functools
import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxtrain.data.examples import dtype_of
from jaxtrain.data.threads import usable_cpus
from jaxtrain.errors import DataError

_AHEAD: Final = 2  # batches
_WAIT_SECONDS: Final = 0.2

Read = Callable[[], NDArray[Any]]


class ImageBatch(NamedTuple):
    """Examples in the order given.

    Attributes:
        names: what each is called.
        images: uint8 `[n, H, W, C]` or float32 `[n, D]`; zeros where there is an error.
        errors: why an example could not be read, in one line, by its row.
    """

    names: list[str]
    images: NDArray[Any]
    errors: dict[int, str]


def read_ahead(
    examples: Iterable[tuple[str, Read]], size: int, image_shape: tuple[int, ...]
) -> Iterator[ImageBatch]:
    """Reads examples ahead of the caller, in as many daemon threads as this process has CPUs.

    Reading begins with the first `next`, and no more than a few batches are in memory at once. A
    thread that hangs in a read never keeps the process from ending.

    Args:
        examples: a name, and what reads an example; its `DataError` goes into the batch.
        size: examples of a batch; the last one may have fewer.
        image_shape: (H, W, C) or (D,), of each.

    Raises:
        Exception: what a read raised that is no `DataError`.
    """
    examples = iter(examples)
    tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
    threads = usable_cpus()
    for _ in range(threads):
        threading.Thread(target=_work, args=(tasks,), daemon=True, name="read ahead").start()
    pending: collections.deque[_Pending] = collections.deque()

    def send() -> None:
        if some := list(itertools.islice(examples, size)):
            pending.append(_Pending([name for name, _ in some], image_shape))
            for row, (_, read) in enumerate(some):
                tasks.put(functools.partial(pending[-1].read, row, read))

    try:
        for _ in range(_AHEAD):
            send()
        while pending:
            batch = pending.popleft().wait()
            send()
            yield batch
    finally:
        with contextlib.suppress(queue.Empty):
            while True:
                tasks.get_nowait()
        for _ in range(threads):
            tasks.put(None)


def _work(tasks: "queue.SimpleQueue[Callable[[], None] | None]") -> None:
    while (task := tasks.get()) is not None:
        task()


class _Pending:
    """A batch that threads fill."""

    def __init__(self, names: list[str], image_shape: tuple[int, ...]):
        zeros = np.zeros((len(names), *image_shape), dtype_of(image_shape))
        self._batch = ImageBatch(names, zeros, {})
        self._fault: Exception | None = None
        self._left = len(names)
        self._lock = threading.Lock()
        self._whole = threading.Event()

    def read(self, row: int, read: Read) -> None:
        try:
            self._batch.images[row] = read()
        except DataError as error:
            self._batch.errors[row] = str(error)
        except Exception as error:
            self._fault = error
        with self._lock:
            self._left -= 1
            if not self._left:
                self._whole.set()

    def wait(self) -> ImageBatch:
        # A signal that comes just before a wait is not seen until the wait ends.
        while not self._whole.wait(_WAIT_SECONDS):
            pass
        if self._fault is not None:
            raise self._fault
        return self._batch
