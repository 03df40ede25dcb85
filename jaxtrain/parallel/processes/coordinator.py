"""Process 0's side of the group: the others connect to it."""

import contextlib
import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from jaxtrain.config.request import split_address
from jaxtrain.errors import PeerLostError, UsageError
from jaxtrain.parallel.processes import relay
from jaxtrain.parallel.processes.group import Abort, Group, Timing
from jaxtrain.parallel.processes.wire import Connection, Garbled, Silence

# More missing processes than this are only counted.
LISTED = 8
GREETING_SECONDS = 10.0
# How long the service may take to listen, and the pause between two attempts to reach it.
SERVICE_SECONDS, RETRY_SECONDS = 60.0, 0.05
# A run that just ended may still hold the port.
BIND_SECONDS = 5.0
THIS_MACHINE = ("127.0.0.1", "::1", "localhost")


def listen(address: tuple[str, int]) -> socket.socket:
    """Listens where the others expect process 0: on all addresses of this machine.

    JAX_COORDINATOR_BIND_ADDRESS=HOST:PORT overrides that, as it does for JAX.

    Args:
        address: its host and port as the others know them.

    Raises:
        UsageError: it cannot be done here.
    """
    host, port = address
    if host not in THIS_MACHINE:
        host = ""
    bind = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS")
    if bind:
        try:
            host, port = split_address(bind)
        except ValueError as error:
            raise UsageError(f"JAX_COORDINATOR_BIND_ADDRESS={bind} {error}") from error
    deadline = time.monotonic() + BIND_SECONDS
    while True:
        try:
            return _server(host, port)
        except OSError as error:
            if time.monotonic() > deadline:
                raise UsageError(
                    f"process 0 cannot listen on port {port}: {error.strerror or error}; give all "
                    "processes another --coordinator, or end what uses that port"
                ) from error
        time.sleep(RETRY_SECONDS)


def _server(host: str, port: int) -> socket.socket:
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


class Coordinator(Group):
    """The group as process 0 sees it.

    It listens on one port, for the other processes' messages and for what they send to JAX's
    coordination service, which listens on `service_port` of this machine alone.
    """

    def __init__(
        self,
        listener: socket.socket,
        count: int,
        timing: Timing,
        on_abort: Callable[[Abort], None],
        service_port: int,
    ) -> None:
        super().__init__(0, count, timing, on_abort)
        self._listener = listener
        self._service_port = service_port
        self._changed = threading.Condition()  # guards all that follows
        self._members: dict[int, Connection] = {}
        self._gathered: dict[int, tuple[str, str]] = {}
        self._complete = False
        self._abort: Abort | None = None
        relay.start_thread(self._accept, "coordinator")
        relay.start_thread(self._keep_beating, "beats")

    def gather(self) -> None:
        """Waits until all are there.

        Raises:
            PeerLostError: some are not, after the time-out.
        """
        with self._changed:
            self._changed.wait_for(self._all_there, self.timing.timeout_seconds)
            self._complete = self._all_there()
            missing = [k for k in range(1, self.count) if k not in self._members]
        if missing:
            abort = Abort(7, self._never_started(missing), None)
            self.abort(abort)
            raise PeerLostError(abort.words)
        self._send_all({"welcome": True})

    def _all_there(self) -> bool:
        return len(self._members) == self.count - 1

    def _never_started(self, missing: Sequence[int]) -> str:
        who = f"process{'es' if len(missing) > 1 else ''} {_listed(missing)} of {self.count}"
        return (
            f"{who} never started: nothing heard of {'them' if len(missing) > 1 else 'it'} for "
            f"{self.timing.timeout_seconds:g} s; start all {self.count} at the same time, or raise "
            "parallel.peer_timeout_seconds"
        )

    def _gather_texts(self, name: str, text: str) -> list[str]:
        with self._changed:
            self._changed.wait_for(lambda: len(self._gathered) == self.count - 1)
            gathered, self._gathered = self._gathered, {}
        for k, (other_name, _) in gathered.items():
            if other_name != name:
                raise RuntimeError(f"process {k} is at {other_name!r}, process 0 at {name!r}")
        texts = [text, *(gathered[k][1] for k in range(1, self.count))]
        self._send_all({"all": texts})
        return texts

    def abort(self, abort: Abort) -> None:
        """See `Group`."""
        self._announce(abort)
        self._wait_until_gone(self.timing.goodbye_seconds)

    def finish(self) -> None:
        """See `Group`."""
        self._wait_until_gone(self.timing.timeout_seconds)
        self._closed.set()
        with self._listener, contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone does not wake `_accept`

    def _wait_until_gone(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._members, seconds)

    def _announce(self, abort: Abort) -> bool:
        """Tells all others why they have to leave; False if they know another reason."""
        with self._changed:
            if self._abort is not None:
                return False
            self._abort = abort
            members = list(self._members.values())
        message = {"abort": abort.status, "words": abort.words, "process": abort.process}
        for member in members:  # one that takes nothing must not keep it from the others
            relay.start_thread(functools.partial(member.send, message), "abort")
        return True

    def _send_all(self, message: dict[str, Any]) -> None:
        for member in self._connections():
            member.send(message)

    def _beat(self) -> None:
        for member in self._connections():
            member.send_unless_busy({"beat": True})

    def _connections(self) -> list[Connection]:
        """Those that are there now; others may come and go while they are sent to."""
        with self._changed:
            return list(self._members.values())

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed by `finish`
            while True:
                sock, _ = self._listener.accept()
                connection = Connection(sock)
                relay.start_thread(functools.partial(self._greet, connection), "member")

    def _greet(self, connection: Connection) -> None:
        """Finds out what a new connection is for; strangers are sent away without a word."""
        greeting = connection.first(GREETING_SECONDS)
        match greeting:
            case {"jaxtrain": "service"}:
                self._join_service(connection)
            case {"jaxtrain": "member", "index": int(index), "count": int(count)}:
                refusal = self._admit(index, count, connection)
                if refusal is None:
                    self._listen(index, connection)
                else:
                    connection.send({"refused": refusal.words, "status": refusal.status})
                    connection.close()
            case _:
                connection.close()

    def _admit(self, index: int, count: int, connection: Connection) -> Abort | None:
        """Takes a process in; returns why not, if so."""
        if count != self.count:
            both = f"process {index} was told of {count} processes, process 0 of {self.count}"
            return Abort(2, f"{both}; give all the same --num_processes", None)
        if not 0 < index < count:
            return Abort(2, f"process {index} cannot connect to process 0 of {count}", None)
        with self._changed:
            if self._complete or self._abort is not None:
                words = f"the {count} processes have begun without it; wait until they have ended"
                return Abort(7, words, None)
            if index in self._members:
                words = f"two processes say that they are process {index} of {count}"
                return Abort(2, f"{words}; give each its own --process_id", None)
            self._members[index] = connection
            self._changed.notify_all()
        return None

    def _listen(self, index: int, connection: Connection) -> None:
        """Takes a process's messages to its end."""
        abort: Abort | None = None
        try:
            for message in connection.messages(self.timing.beat_seconds, self.timing.ticks):
                match message:
                    case {"gather": str(name), "text": str(text)}:
                        with self._changed:
                            self._gathered[index] = name, text
                            self._changed.notify_all()
                    case {"abort": int(status), "words": str(words)}:
                        abort = Abort(status, words, index)
                        self._abort_all(abort)
                    case {"bye": _}:
                        break
            else:
                abort = abort or self.vanished(index)
        except Silence:
            abort = self.silent(index)
        except Garbled:
            abort = self.vanished(index)
        with self._changed:
            # Under one lock with what `gather` decides: a process that was lost before is awaited
            # again, and of one that was lost after all others hear.
            is_lost = abort is not None and self._complete
            if not is_lost:
                self._remove(index)
        if abort is not None and is_lost:
            self._abort_all(abort)
            with self._changed:
                self._remove(index)

    def _remove(self, index: int) -> None:
        self._members.pop(index).close()
        self._changed.notify_all()

    def _abort_all(self, abort: Abort) -> None:
        if self._announce(abort):
            relay.start_thread(functools.partial(self._leave, abort), "leave")

    def _leave(self, abort: Abort) -> None:
        self._wait_until_gone(self.timing.goodbye_seconds)
        self.on_abort(abort)

    def _join_service(self, connection: Connection) -> None:
        client, early = connection.detach()
        deadline = time.monotonic() + SERVICE_SECONDS
        while time.monotonic() < deadline:
            try:
                service = socket.create_connection((relay.LOOPBACK, self._service_port))
            except OSError:
                time.sleep(RETRY_SECONDS)
                continue
            service.sendall(early)
            relay.join(client, service)
            return


def _listed(numbers: Sequence[int]) -> str:
    if len(numbers) > LISTED:
        few = ", ".join(map(str, numbers[: LISTED - 1]))
        return f"{few} and {len(numbers) - LISTED + 1:,} more"
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last
