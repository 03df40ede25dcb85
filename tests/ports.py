"""Ports for processes that are started later."""

import random
import socket
from typing import Final

# Below those that the system gives out to whoever connects.
_FIRST: Final = 20_000
_LAST: Final = 32_000


def free_port() -> int:
    """A port of this machine that nobody listens on, nor gets by chance."""
    while True:
        port = random.randint(_FIRST, _LAST)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
