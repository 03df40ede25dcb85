"""Bytes of JAX's coordination service on their way between two processes.

JAX's client ends the process with a C++ stack as soon as its connection to the service is closed,
which happens when process 0 dies. So clients are connected through a relay in their own process,
which stays open when the service is gone, and the process can end in its own words.
"""

import contextlib
import socket
import threading
from collections.abc import Callable

LOOPBACK = "127.0.0.1"
BYTES = 1 << 16


def listen(upstream: Callable[[], socket.socket]) -> int:
    """Accepts connections from this machine, and joins each with one from `upstream`.

    Returns:
        The port, a free one.
    """
    server = socket.create_server((LOOPBACK, 0))
    clients = []  # a socket that nobody holds is closed

    def accept() -> None:
        while True:
            client, _ = server.accept()
            clients.append(client)
            with contextlib.suppress(OSError):
                join(client, upstream())

    start_thread(accept, "relay")
    port: int = server.getsockname()[1]
    return port


def join(client: socket.socket, service: socket.socket) -> None:
    """Passes on what either sends. The service hears when the client ends, but not the reverse."""
    for sock in (client, service):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def upwards() -> None:
        with contextlib.suppress(OSError):
            _pass_on(client, service)
            service.shutdown(socket.SHUT_WR)

    def downwards() -> None:
        with contextlib.suppress(OSError):
            _pass_on(service, client)

    start_thread(upwards, "relay-up")
    start_thread(downwards, "relay-down")


def start_thread(function: Callable[[], None], name: str) -> threading.Thread:
    """Starts a thread that keeps no process from ending."""
    thread = threading.Thread(target=function, name=f"jaxtrain-{name}", daemon=True)
    thread.start()
    return thread


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    while data := source.recv(BYTES):
        sink.sendall(data)
