"""What is removed from the folder of images that are kept on disk; nothing else ever is."""

import contextlib
import fcntl
import os
import platform
import time
from pathlib import Path
from typing import Final

from jaxtrain.data.cache import chunk

_UNUSED_SECONDS: Final = 30 * 86_400
_DAY_SECONDS: Final = 86_400


def clean(folder: Path) -> None:
    """Removes what killed processes left, and images that no run has used for 30 days."""
    now = time.time()
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process does the same
            if chunk.NAME.fullmatch(path.name):
                if now - path.stat().st_mtime > _UNUSED_SECONDS and chunk.is_marked(path):
                    path.unlink()
            elif match := chunk.TEMPORARY.fullmatch(path.name):
                _remove_left(path, match["node"], now)


def _remove_left(path: Path, node: str, now: float) -> None:
    """Removes a temporary file that nobody writes any more.

    Its writer holds a lock on it, which is seen in all containers of a machine. What another
    machine has locked is not always seen, and not every disk has locks: then the file is left over
    if it has not grown for a day.

    Raises:
        OSError: it is not there any more, or is another user's.
    """
    with path.open("r+b") as file:  # NFS locks only what may be written
        seen = node == platform.node()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError:
            seen = False
        if seen or now - os.fstat(file.fileno()).st_mtime > _DAY_SECONDS:
            path.unlink()
