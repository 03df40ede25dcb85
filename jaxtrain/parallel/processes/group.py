"""The group of processes that make a run: each connects to process 0, its coordinator.

A connection that ends without a word, or is silent for too long, is a lost process. What ends one
process ends all of them, with the same exit status.
"""

import abc
import dataclasses
import math
import threading
from collections.abc import Callable

# Signs of life within the time-out, and the longest time between two.
BEATS_PER_TIMEOUT, SLOWEST_BEAT_SECONDS = 12, 5.0
# How long who leaves waits for the others to hear why, and then for its own callbacks; together at
# most this part of the time-out.
GOODBYE_SECONDS, LAST_WORDS_SECONDS, LEAVING_PART = 1.0, 2.0, 1 / 4


@dataclasses.dataclass(frozen=True)
class Timing:
    """How the time-out is shared out: a process that falls silent has ended all others within it.

    Attributes:
        timeout_seconds: the whole; how long others may take to start.
        beat_seconds: between two signs of life, and how long is waited for one at a time.
        ticks: after how many such waits in vain a process is lost.
        goodbye_seconds: how long who leaves waits for the others to hear why.
        last_words_seconds: how long its callbacks may take after that.
    """

    timeout_seconds: float
    beat_seconds: float
    ticks: int
    goodbye_seconds: float
    last_words_seconds: float

    @property
    def silence_seconds(self) -> float:
        """The silence after which a process is lost."""
        return self.ticks * self.beat_seconds


def share_out(timeout_seconds: float) -> Timing:
    """The timing that fits into `parallel.peer_timeout_seconds`."""
    beat_seconds = min(timeout_seconds / BEATS_PER_TIMEOUT, SLOWEST_BEAT_SECONDS)
    longest = GOODBYE_SECONDS + LAST_WORDS_SECONDS
    leaving_seconds = min(longest, timeout_seconds * LEAVING_PART)
    return Timing(
        timeout_seconds,
        beat_seconds,
        ticks=math.floor((timeout_seconds - leaving_seconds) / beat_seconds),
        goodbye_seconds=leaving_seconds * GOODBYE_SECONDS / longest,
        last_words_seconds=leaving_seconds * LAST_WORDS_SECONDS / longest,
    )


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
        timing: when others are late, or lost.
        on_abort: called in another thread when all have to leave, but not for this process's own
            `abort`; need not return.
    """

    def __init__(
        self, index: int, count: int, timing: Timing, on_abort: Callable[[Abort], None]
    ) -> None:
        self.index = index
        self.count = count
        self.timing = timing
        self.on_abort = on_abort
        self._closed = threading.Event()
        self._turn = 0

    def all_gather(self, name: str, text: str) -> list[str]:
        """The `text`s of all processes, in their order, on each; all call it alike.

        It waits for as long as the others live.
        """
        self._turn += 1
        return self._gather_texts(f"{self._turn} {name}", text)

    @abc.abstractmethod
    def _gather_texts(self, name: str, text: str) -> list[str]:
        """As `all_gather`, with a name that occurs once."""

    @abc.abstractmethod
    def abort(self, abort: Abort) -> None:
        """Makes all others leave; waits a little until they know, even if one of them hangs."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Leaves in peace when all have done so; process 0 waits until it is the last."""

    @abc.abstractmethod
    def _beat(self) -> None:
        """Sends a sign of life."""

    def _keep_beating(self) -> None:
        while not self._closed.wait(self.timing.beat_seconds):
            self._beat()

    def silent(self, process: int) -> Abort:
        """Why all leave when a process is there but says nothing."""
        return self._lost(process, f"no sign of life for {self.timing.silence_seconds:g} s")

    def vanished(self, process: int) -> Abort:
        """Why all leave when the connection of a process ended."""
        return self._lost(process, "it ended without a word")

    def _lost(self, process: int, how: str) -> Abort:
        who = f"process {process} of {self.count}"
        return Abort(7, f"{who} was lost: {how}; run the same command again", None)
