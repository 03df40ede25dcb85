"""Progress of what is done before a run is set up, if that takes long."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

from jaxtrain.report.console import Console, open_console

_UNIT = "images"


@contextlib.contextmanager
def preparing(*, shown: bool = True) -> Iterator[Callable[[str, int, int], None]]:
    """Shows progress on stderr while inside, once there is any.

    Args:
        shown: whether this process shows anything.

    Yields:
        A function of what is done, how much of it and of how much, that threads may call.
    """
    console: Console | None = None
    lock = threading.Lock()

    def progress(what: str, done: int, total: int) -> None:
        nonlocal console
        with lock:
            if not shown:
                return
            if console is None:
                console = open_console(sys.stderr, time.perf_counter)
                console.pause(what)
            console.batches(what, done, total, _UNIT)

    try:
        yield progress
    finally:
        with lock:
            shown = False
            if console is not None:
                console.close()
