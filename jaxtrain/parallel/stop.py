"""Stopping on SIGTERM and SIGINT between two steps."""

import os
import signal
import threading
import types
from collections.abc import Callable
from typing import Any, NoReturn, Self

from jaxtrain import files
from jaxtrain.errors import Stopped

SECOND_SIGNAL_STATUS = 130


def leave(number: int, frame: types.FrameType | None = None) -> NoReturn:
    """Ends the process at a signal that comes before there is anything to save.

    A person's Ctrl-C is the end; SIGTERM may be a machine that is taken away, and then whoever
    starts jobs again is to start this one, too. What is half written is removed.
    """
    files.remove_temporary()
    if number == signal.SIGTERM:
        said = "stopped before there was anything to save; run the same command again"
        os.write(2, f"\njaxtrain: {said}\n".encode())
        os._exit(Stopped.status)
    os.write(2, b"\njaxtrain: interrupted\n")
    os._exit(SECOND_SIGNAL_STATUS)


class StopRequest:
    """Remembers that a stop was asked for; a second signal ends the process at once.

    Until `hold` is called there is nothing to save, and the first signal does. From then on it
    only sets a flag, which the loop reads between steps, so that the run ends on a saved step. A
    compilation cannot be interrupted and Python runs no handler inside it, so signal numbers are
    read from a wake-up pipe by a thread, which also acts on the second signal.

    Use it as a context manager in the main thread; the former handlers come back at its end.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self._holds: tuple[Callable[[], None], Callable[[], None]] | None = None
        self._stop = threading.Event()
        self._former: dict[int, Any] = {}

    def hold(self, on_first: Callable[[], None], on_second: Callable[[], None]) -> None:
        """From here on the process is not to end at a first signal.

        Args:
            on_first: runs, in another thread, when a first signal came.
            on_second: runs just before a second signal's exit.
        """
        self._holds = on_first, on_second

    @property
    def requested(self) -> bool:
        """Whether a first signal came."""
        return self._stop.is_set()

    def __enter__(self) -> Self:
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        for number in self._SIGNALS:
            self._former[number] = signal.signal(number, _ignore)
        self._former_wakeup = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name="jaxtrain-signals", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._former_wakeup)
        for number, handler in self._former.items():
            signal.signal(number, handler)
        os.close(self._write_end)

    def _watch(self) -> None:
        with open(self._read_end, "rb", buffering=0) as pipe:
            while numbers := pipe.read(1):
                if numbers[0] not in self._SIGNALS:
                    continue
                if self._holds is None:
                    leave(numbers[0])
                on_first, on_second = self._holds
                if self._stop.is_set():
                    try:
                        on_second()
                    finally:
                        os._exit(SECOND_SIGNAL_STATUS)
                self._stop.set()
                on_first()


def _ignore(number: int, frame: types.FrameType | None) -> None:
    """A Python-level handler, so that the signal reaches the wake-up pipe and nothing else."""
