"""The side of every process but the first: one connection to the coordinator."""

import functools
import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from jaxtrain.errors import JaxtrainError, PeerLostError, UsageError
from jaxtrain.parallel.processes import relay
from jaxtrain.parallel.processes.group import Abort, Group, Timing
from jaxtrain.parallel.processes.wire import Connection, Garbled, Silence

RETRY_SECONDS = 0.1


class Member(Group):
    """The group as a process sees it that is not the first."""

    def __init__(
        self,
        address: tuple[str, int],
        index: int,
        count: int,
        timing: Timing,
        on_abort: Callable[[Abort], None],
    ) -> None:
        """Connects to process 0.

        Raises:
            PeerLostError: it cannot be reached within the time-out.
        """
        super().__init__(index, count, timing, on_abort)
        self._address = address
        self._coordinator = Connection(self._reach_coordinator())
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._leaving = False
        self._heard = threading.Event()
        self._coordinator.send({"jaxtrain": "member", "index": index, "count": count})
        relay.start_thread(self._listen, "coordinator")
        relay.start_thread(self._keep_beating, "beats")

    def _reach_coordinator(self) -> socket.socket:
        deadline = time.monotonic() + self.timing.timeout_seconds
        while True:
            try:
                sock = socket.create_connection(
                    self._address, max(deadline - time.monotonic(), RETRY_SECONDS)
                )
            except OSError as error:
                if time.monotonic() > deadline:
                    raise PeerLostError(self._unreached(error)) from error
                time.sleep(RETRY_SECONDS)
            else:
                sock.settimeout(None)
                return sock

    def _unreached(self, error: OSError) -> str:
        host, port = self._address
        return (
            f"process 0 of {self.count} never started: {host} port {port} cannot be reached "
            f"({error.strerror or error}) after {self.timing.timeout_seconds:g} s; start all "
            f"{self.count} at the same time, or raise parallel.peer_timeout_seconds"
        )

    def _stranger(self) -> str:
        host, port = self._address
        return (
            f"what answers at {host} port {port} is not process 0 of a run; give --coordinator the "
            "address of process 0, with a port that nothing else has"
        )

    def gather(self) -> None:
        """Waits until all are there.

        Raises:
            JaxtrainError: process 0 refuses this one.
        """
        answer = self._answers.get()
        if not {"welcome", "refused"} & set(answer):
            raise UsageError(self._stranger())
        if "refused" in answer:
            kind: type[JaxtrainError] = PeerLostError if answer["status"] == 7 else UsageError
            raise kind(answer["refused"])

    def service_connection(self) -> socket.socket:
        """Another connection to process 0, joined there with JAX's coordination service."""
        sock = socket.create_connection(self._address, self.timing.timeout_seconds)
        sock.settimeout(None)
        Connection(sock).send({"jaxtrain": "service"})
        return sock

    def _gather_texts(self, name: str, text: str) -> list[str]:
        self._coordinator.send({"gather": name, "text": text})
        texts: list[str] = self._answers.get()["all"]
        return texts

    def abort(self, abort: Abort) -> None:
        """See `Group`."""
        self._leaving = True
        message = {"abort": abort.status, "words": abort.words}
        relay.start_thread(functools.partial(self._coordinator.send, message), "abort")
        self._heard.wait(self.timing.goodbye_seconds)

    def finish(self) -> None:
        """See `Group`."""
        self._leaving = True
        self._coordinator.send({"bye": True})
        self._closed.set()

    def _beat(self) -> None:
        self._coordinator.send_unless_busy({"beat": True})

    def _listen(self) -> None:
        """Takes process 0's messages until it or all have to leave."""
        try:
            abort = self._take_messages()
        except Silence:
            abort = self.silent(0)
        except Garbled:
            abort = Abort(2, self._stranger(), None)
        self._heard.set()
        if not self._leaving:
            self.on_abort(abort)
        self._closed.set()
        self._coordinator.close()

    def _take_messages(self) -> Abort:
        for message in self._coordinator.messages(self.timing.beat_seconds, self.timing.ticks):
            match message:
                case {"abort": int(status), "words": str(words), "process": process}:
                    self._coordinator.send_unless_busy({"bye": True})  # whoever tells waits for it
                    return Abort(status, words, process)
                case {"refused": _}:
                    self._leaving = True  # its main thread ends it
                    self._answers.put(message)
                case {"beat": _}:
                    pass
                case _:
                    self._answers.put(message)
        return self.vanished(0)
