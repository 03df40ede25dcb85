"""Bytes of JAX's coordination service on their way between two processes.

JAX's client ends the process with SIGABRT as soon as its connection to the service is closed, which
happens when process 0 dies. So clients are connected through a relay in their own process, which
stays open when the service is gone, and the process can end in its own words.
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
    waiting = []  # for a service that cannot be reached; a socket that nobody holds is closed

    def accept() -> None:
        while True:
            client, _ = server.accept()
            try:
                join(client, upstream())
            except OSError:
                waiting.append(client)

    start_thread(accept, "relay")
    port: int = server.getsockname()[1]
    return port


def join(client: socket.socket, service: socket.socket) -> None:
    """Passes on what either sends. The service hears when the client ends, but not the reverse."""
    for sock in (client, service):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def upwards() -> None:
        with client, service:
            while data := _receive(client):
                with contextlib.suppress(OSError):
                    service.sendall(data)
            with contextlib.suppress(OSError):
                service.shutdown(socket.SHUT_RDWR)

    def downwards() -> None:
        with contextlib.suppress(OSError):
            while data := _receive(service):
                client.sendall(data)

    start_thread(upwards, "relay-up")
    start_thread(downwards, "relay-down")


def _receive(sock: socket.socket) -> bytes:
    """What came, or nothing at the connection's end."""
    try:
        return sock.recv(BYTES)
    except OSError:
        return b""


def start_thread(function: Callable[[], None], name: str) -> threading.Thread:
    """Starts a thread that keeps no process from ending."""
    thread = threading.Thread(target=function, name=f"jaxtrain-{name}", daemon=True)
    thread.start()
    return thread
