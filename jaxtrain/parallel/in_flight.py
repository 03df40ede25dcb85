"""Calls of a step, or of a few at once, that were sent to the devices and not waited for."""

import collections
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

# Calls that may be in flight at once. With no bound, several CPU devices in one process deadlock
# in an all-reduce: each call waiting takes threads, however many steps it has.
MAX_IN_FLIGHT = 4


class InFlight(Generic[T]):
    """At most `MAX_IN_FLIGHT` sent calls, finished in order.

    Waiting only for the oldest keeps the device busy, and results are fetched that much later.
    """

    def __init__(self, finish: Callable[[T], None]) -> None:
        """`finish` waits for one step and takes what it gave."""
        self._finish = finish
        self._sent: collections.deque[T] = collections.deque()

    def make_room(self) -> None:
        """Finishes the oldest steps until another may be sent."""
        while len(self._sent) >= MAX_IN_FLIGHT:
            self._finish(self._sent.popleft())

    def add(self, step: T) -> None:
        """Takes a step that was just sent."""
        self._sent.append(step)

    def drain(self) -> None:
        """Finishes every step."""
        while self._sent:
            self._finish(self._sent.popleft())
