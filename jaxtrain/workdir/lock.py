"""Who has a local folder: the kernel's lock on a file, which ends with the process."""

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from jaxtrain.errors import CheckpointError, UsageError
from jaxtrain.workdir.names import LOCK, held_error


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Makes a folder, and holds it while inside.

    Raises:
        UsageError: another process holds it, or it cannot be written.
        CheckpointError: the disk is full.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise UsageError(
            f"cannot write to workdir {path}: {error.strerror}; choose another with --workdir"
        ) from error
    try:
        _hold(lock, path)
        yield
    finally:
        os.close(lock)


def _hold(lock: int, path: Path) -> None:
    """Takes the lock and leaves word of who has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 1000, 0).decode(errors="replace").strip() or "another process"
        raise held_error(path, holder) from None
    except OSError as error:
        raise UsageError(
            f"cannot lock workdir {path}: {error.strerror}; choose another file system"
        ) from error
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    except OSError as error:
        raise CheckpointError(
            f"cannot write to workdir {path}: {error.strerror}; make room, then run the same "
            "command again"
        ) from error
