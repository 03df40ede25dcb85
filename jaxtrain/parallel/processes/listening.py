"""The port where the other processes find process 0."""

import os
import socket
import time

from jaxtrain.config.request import split_address
from jaxtrain.errors import UsageError

# A run that just ended may still hold the port.
BIND_SECONDS, RETRY_SECONDS = 5.0, 0.1
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
