"""What is removed from the folder of images that are kept on disk; nothing else ever is."""

import contextlib
import fcntl
import os
import platform
import time
from pathlib import Path
from typing import BinaryIO, Final

from jaxtrain.data.cache import chunk

_UNUSED_SECONDS: Final = 30 * 86_400
_DAY_SECONDS: Final = 86_400


def clean(folder: Path) -> None:
    """Removes what killed processes left, and images that no run has used for 30 days."""
    now = time.time()
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process does the same
            if chunk.NAME.fullmatch(path.name):
                if _is_old(path, now) and chunk.is_marked(path):
                    _remove_unused(path, now)
            elif match := chunk.TEMPORARY.fullmatch(path.name):
                _remove_left(path, match["node"], now)


def _remove_unused(path: Path, now: float) -> None:
    """Removes images, unless a run that has opened them goes on still: then they look used.

    Raises:
        OSError: they are not there any more.
    """
    with _opened(path) as file:
        if _is_locked(file):
            os.utime(path)  # and for as long from now on
        elif _is_old(path, now):  # it was not opened meanwhile
            path.unlink()


def _remove_left(path: Path, node: str, now: float) -> None:
    """Removes a temporary file that nobody writes any more.

    Its writer holds a lock on it, which is seen in all containers of a machine. What another
    machine has locked is not always seen, and not every disk has locks: then the file is left over
    if it has not grown for a day.

    Raises:
        OSError: it is not there any more.
    """
    with _opened(path) as file:
        locked = _is_locked(file)
        if locked:
            return
        seen = locked is not None and node == platform.node()
        if seen or now - os.fstat(file.fileno()).st_mtime > _DAY_SECONDS:
            path.unlink()


def _is_old(path: Path, now: float) -> bool:
    return now - path.stat().st_mtime > _UNUSED_SECONDS


def _opened(path: Path) -> BinaryIO:
    """A file to be locked: for writing if that may be, as NFS locks nothing else."""
    try:
        return path.open("r+b")
    except PermissionError:
        return path.open("rb")


def _is_locked(file: BinaryIO) -> bool | None:
    """Whether a process has locked a file, else it is locked here; None: it cannot be told."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False
