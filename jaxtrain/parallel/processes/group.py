"""The group of processes that make a run: each connects to process 0, its coordinator.

A connection that ends without a word, or is silent for too long, is a lost process. What ends one
process ends all of them, with the same exit status.
"""

import abc
import dataclasses
import threading
from collections.abc import Callable

# Signs of life in the time after which silence means that a process is lost.
BEATS_PER_TIMEOUT = 6
SLOWEST_BEAT_SECONDS = 5.0
# How long a process waits for the others to hear why it leaves.
GOODBYE_SECONDS = 3.0


@dataclasses.dataclass(frozen=True)
class Abort:
    """Why all processes have to leave.

    Attributes:
        status: their exit status.
        words: the reason, one line.
        process: the process whose words these are; None: they are about a lost process.
    """

    status: int
    words: str
    process: int | None


class Group(abc.ABC):
    """The other processes, as one of them sees them.

    Args:
        index: this process.
        count: how many there are.
        timeout_seconds: silence after which a process is lost.
        on_abort: called in another thread when all have to leave, but not for this process's own
            `abort`; need not return.
    """

    def __init__(
        self, index: int, count: int, timeout_seconds: float, on_abort: Callable[[Abort], None]
    ) -> None:
        self.index = index
        self.count = count
        self.timeout_seconds = timeout_seconds
        self.on_abort = on_abort
        self.beat_seconds = min(timeout_seconds / BEATS_PER_TIMEOUT, SLOWEST_BEAT_SECONDS)
        self.ticks = round(timeout_seconds / self.beat_seconds)
        self._closed = threading.Event()
        self._turn = 0

    def all_gather(self, name: str, text: str) -> list[str]:
        """Gives `text` to all processes, in the order of processes; all call it alike.

        It waits for as long as the others live.
        """
        self._turn += 1
        return self._gather_texts(f"{self._turn} {name}", text)

    @abc.abstractmethod
    def _gather_texts(self, name: str, text: str) -> list[str]:
        """As `all_gather`, with a name that occurs once."""

    @abc.abstractmethod
    def abort(self, abort: Abort) -> None:
        """Makes all others leave, and waits a little until they know."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Leaves in peace when all have done so; process 0 waits until it is the last."""

    @abc.abstractmethod
    def _beat(self) -> None:
        """Sends a sign of life."""

    def _keep_beating(self) -> None:
        while not self._closed.wait(self.beat_seconds):
            self._beat()

    def silent(self, process: int) -> Abort:
        """Why all leave when a process is there but says nothing."""
        return self._lost(process, f"no sign of life for {self.timeout_seconds:g} s")

    def vanished(self, process: int) -> Abort:
        """Why all leave when the connection of a process ended."""
        return self._lost(process, "it ended without a word")

    def _lost(self, process: int, how: str) -> Abort:
        who = f"process {process} of {self.count}"
        return Abort(7, f"{who} was lost: {how}; run the same command again", None)
