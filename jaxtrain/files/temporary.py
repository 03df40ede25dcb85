"""What lies beside its final place while it is written, and must not be left there."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

_there: set[Path] = set()


@contextlib.contextmanager
def temporary(path: Path) -> Iterator[Path]:
    """Removes a file or a folder when the block ends, if it is there then.

    A signal that ends the process has `remove_temporary` called first.
    """
    _there.add(path)
    try:
        yield path
    finally:
        _remove(path)
        _there.discard(path)


def remove_temporary() -> None:
    """Removes what is being written, before the process ends in the middle of it."""
    for path in tuple(_there):
        _remove(path)


def _remove(path: Path) -> None:
    if os.path.isdir(path):  # says so, where `Path.is_dir` raises for a name that is too long
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        path.unlink()
