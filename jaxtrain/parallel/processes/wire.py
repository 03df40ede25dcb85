"""Messages between processes: JSON objects, one a line, over a TCP connection."""

import contextlib
import json
import select
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from typing import Any

Message = Mapping[str, Any]

RECEIVE_BYTES = 1 << 16


class Silence(Exception):  # noqa: N818 - whoever listens decides what it means
    """Nothing was received for too long, though the connection is there."""


class Garbled(Exception):  # noqa: N818 - see Silence
    """Something came that is no message."""


class Connection:
    """One end of a connection. Any thread may send, one thread at a time may receive."""

    def __init__(self, sock: socket.socket, send_seconds: int = 60) -> None:
        """Wraps a connected, blocking socket.

        Args:
            sock: the socket.
            send_seconds: how long a message may take to send; after that the rest is dropped.
        """
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A process that was stopped takes nothing, and whoever sends to it would wait for ever.
        limit = struct.pack("ll", send_seconds, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._socket = sock
        self._sending = threading.Lock()
        self._rest = b""

    def send(self, message: Message) -> None:
        """Sends; if the connection is gone nothing happens, since whoever receives finds out."""
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(_encode(message))

    def send_unless_busy(self, message: Message) -> None:
        """Sends, unless something else is just being sent."""
        if self._sending.acquire(blocking=False):
            try:
                with contextlib.suppress(OSError):
                    self._socket.sendall(_encode(message))
            finally:
                self._sending.release()

    def messages(self, tick_seconds: float, ticks: int) -> Iterator[dict[str, Any]]:
        """Every message in turn, to the end of the connection.

        Args:
            tick_seconds: how long is waited at a time. Waits are counted, not the clock read, so
                that a process that was itself stopped for long blames nobody when it goes on.
            ticks: after how many waits in a row that were in vain it ends.

        Raises:
            Silence: so many were.
            Garbled: what came is no message; the other end is something else.
        """
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        silent = 0
        while True:
            while b"\n" in self._rest:
                line, self._rest = self._rest.split(b"\n", 1)
                yield _decoded(line)
            if not poll.poll(1000 * tick_seconds):
                silent += 1
                if silent == ticks:
                    raise Silence
                continue
            silent = 0
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except OSError:
                return
            if not data:
                return
            self._rest += data

    def first(self, seconds: float) -> dict[str, Any] | None:
        """The first message; None if none that can be read came in this time."""
        try:
            message = next(self.messages(seconds, 1), None)
        except (Silence, Garbled):
            return None
        return message

    def detach(self) -> tuple[socket.socket, bytes]:
        """The socket, for bytes of another kind from here on, and those that came already."""
        return self._socket, self._rest

    def close(self) -> None:
        """Ends the connection; the other end receives all that was sent before."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError as error:
        raise Garbled from error
    if not isinstance(message, dict):
        raise Garbled
    return message


def _encode(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"
