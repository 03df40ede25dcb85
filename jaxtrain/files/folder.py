"""Folders that get to their place whole."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from jaxtrain.errors import CheckpointError, UsageError
from jaxtrain.files.temporary import temporary
from jaxtrain.files.whole import NOT_WRITABLE


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A new folder whose content gets to `path` when the block ends; nothing does if it raises.

    What is at `path` already is replaced then, and is there until then. What an earlier process
    that was killed left beside it is removed.

    Yields:
        An empty folder beside `path`, whose parents are made.

    Raises:
        UsageError: the place is not writable.
        CheckpointError: it cannot be written for another reason, such as a full disk.
    """
    own = path.with_name(f".{path.name}.{os.getpid()}")
    old = Path(f"{own}.old")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_left(path)
        with temporary(Path(f"{own}.tmp")) as beside:
            beside.mkdir()
            yield beside
            _flush(beside)
            with contextlib.suppress(FileNotFoundError):
                path.rename(old)
            beside.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        if error.errno in NOT_WRITABLE:
            raise UsageError(
                f"cannot write {path}: {error.strerror}; make it writable or choose another folder"
            ) from error
        raise CheckpointError(
            f"cannot write {path}: {error.strerror or error}; make room, then run the same "
            "command again"
        ) from error


def _remove_left(path: Path) -> None:
    """Removes what processes that are no more left; brings back what one had put aside."""
    left = re.compile(rf"\.{re.escape(path.name)}\.(\d+)\.(tmp|old)")
    for entry in path.parent.iterdir():
        match = left.fullmatch(entry.name)
        if match is None or Path(f"/proc/{match[1]}").exists():
            continue
        if match[2] == "old" and not path.exists():
            entry.rename(path)
        else:
            shutil.rmtree(entry, ignore_errors=True)


def _flush(folder: Path) -> None:
    """Brings a folder and all in it to the disk."""
    for entry in [*folder.rglob("*"), folder]:
        descriptor = os.open(entry, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
