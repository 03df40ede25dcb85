"""Images read ahead in threads, where some may be bad."""

import collections
import contextlib
import functools
import itertools
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxtrain.errors import DataError

_AHEAD: Final = 2  # batches
_WAIT_SECONDS: Final = 0.2

Read = Callable[[], NDArray[np.uint8]]


class ImageBatch(NamedTuple):
    """Images in the order given.

    Attributes:
        names: what each is called.
        images: uint8 `[n, H, W, C]`; zeros where there is an error.
        errors: why an image could not be read, in one line, by its row.
    """

    names: list[str]
    images: NDArray[np.uint8]
    errors: dict[int, str]


def read_ahead(
    examples: Iterable[tuple[str, Read]], size: int, image_shape: tuple[int, int, int]
) -> Iterator[ImageBatch]:
    """Reads images ahead of the caller, in as many daemon threads as this process has CPUs.

    Reading begins with the first `next`, and no more than a few batches are in memory at once. A
    thread that hangs in a read never keeps the process from ending.

    Args:
        examples: a name, and what reads an image `[H, W, C]`; its `DataError` goes into the batch.
        size: images of a batch; the last one may have fewer.
        image_shape: (H, W, C).

    Raises:
        Exception: what a read raised that is no `DataError`.
    """
    examples = iter(examples)
    tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
    threads = len(os.sched_getaffinity(0))
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

    def __init__(self, names: list[str], image_shape: tuple[int, int, int]):
        self._batch = ImageBatch(names, np.zeros((len(names), *image_shape), np.uint8), {})
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
