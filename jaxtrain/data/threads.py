"""How many threads to work in, and how they share the process's memory."""

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator
from concurrent import futures
from typing import Final

_MOST_READERS: Final = 16  # each reads a batch of its own, which is held in memory

# Parameters of mallopt(3), and their values: the most that is kept at the end of a heap, and the
# largest piece that is taken from one (what glibc allows).
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 2**27
_LARGEST_FROM_HEAP: Final = 2**25


def usable_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


@contextlib.contextmanager
def workers(threads: int | None = None) -> Iterator[futures.Executor]:
    """A pool of threads, one for each CPU unless said; leaving it drops what has not begun."""
    pool = futures.ThreadPoolExecutor(threads or usable_cpus())
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def readers(asked: int | None) -> int:
    """Threads that read batches ahead: `data.threads`, or one for each CPU, at most 16."""
    return asked or min(usable_cpus(), _MOST_READERS)


@functools.cache
def reuse_freed_memory() -> None:
    """Has this process keep memory that it frees, for what it allocates next; glibc alone does.

    An image takes half a megabyte here and there while it is decoded and resized. By its defaults
    the C library gives that back to the system at once, and each of its pages comes back by a
    fault; faults of several threads wait for each other. It costs half of the time of a resize.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_FROM_HEAP)
