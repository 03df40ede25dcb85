"""What lies beside its final place while it is written, and must not be left there."""

import contextlib
import os
import platform
import re
import shutil
import uuid
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


def beside(path: Path) -> Path:
    """As `unique_beside`; what killed processes of this machine left there is removed."""
    for left in left_beside(path, "tmp"):
        _remove(left)
    return unique_beside(path)


def unique_beside(path: Path) -> Path:
    """A name beside `path`, hidden and at each call another one, for what is to get there.

    Threads may write the same file at once, and processes of two containers, whose node names and
    ids may be equal, on a disk that they share.
    """
    name = f".{path.name}.{platform.node()}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp"
    return path.with_name(name)


def beside_pattern(name: str, suffix: str = "tmp") -> re.Pattern[str]:
    """What the names of `unique_beside` match.

    Args:
        name: a regular expression of the name that the file or folder is to have.
        suffix: the last part, where that has been replaced.

    Returns:
        A pattern of whole names, with the groups `node` and `pid`: who made the name.
    """
    return re.compile(rf"\.{name}\.(?P<node>.*)\.(?P<pid>\d+)\.[0-9a-f]{{8}}\.{suffix}")


def left_beside(path: Path, suffix: str) -> list[Path]:
    """What killed processes of this machine left under names like `beside`'s."""
    pattern = beside_pattern(re.escape(path.name), suffix)
    found = []
    for entry in path.parent.iterdir():
        match = pattern.fullmatch(entry.name)
        if match is None or match["node"] != platform.node():
            continue
        if not os.path.exists(f"/proc/{match['pid']}"):
            found.append(entry)
    return found


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
