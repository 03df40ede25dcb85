"""Folders that get to their place whole."""

import contextlib
import os
import platform
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from jaxtrain.errors import CheckpointError, UsageError
from jaxtrain.files.temporary import temporary
from jaxtrain.files.whole import NOT_WRITABLE


@contextlib.contextmanager
def atomic_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A new folder whose content gets to `path` when the block ends; nothing does if it raises.

    What is at `path` already is there until then, but for the moment between two renames. What an
    earlier process of this machine that was killed left beside it is removed, or brought back.

    Args:
        path: a place that is free.
        replace: it may also be a folder, which goes.

    Yields:
        An empty folder beside `path`, whose parents are made.

    Raises:
        UsageError: the place is not writable, or is taken.
        CheckpointError: it cannot be written for another reason, such as a full disk.
    """
    own = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _bring_back(path)
    with temporary(Path(f"{own}.tmp")) as beside:
        with writing(path):
            beside.mkdir()
        yield beside
        with writing(path):
            _flush(beside)
            _move(beside, path, aside=Path(f"{own}.old"), replace=replace)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Says in one line why `path` cannot be written.

    Raises:
        UsageError: it is not writable.
        CheckpointError: it cannot be written for another reason, such as a full disk.
    """
    try:
        yield
    except OSError as error:
        said = error.strerror or error
        if error.errno in NOT_WRITABLE:
            raise UsageError(
                f"cannot write {path}: {said}; make it writable or choose another folder"
            ) from error
        raise CheckpointError(
            f"cannot write {path}: {said}; make room, then run the same command again"
        ) from error


def _move(beside: Path, path: Path, *, aside: Path, replace: bool) -> None:
    """Brings a folder to its place."""
    if not os.path.lexists(path):
        beside.rename(path)
        return
    if not replace:
        raise UsageError(f"{path} was made by someone else meanwhile; choose another place")
    path.rename(aside)
    try:
        beside.rename(path)
    except OSError:
        aside.rename(path)
        raise
    if aside.is_symlink():
        aside.unlink()
    else:
        shutil.rmtree(aside, ignore_errors=True)


def _bring_back(path: Path) -> None:
    """Removes what processes that are no more left; brings back what one had put aside."""
    name = f".{path.name}.{platform.node()}"
    left = re.compile(rf"{re.escape(name)}\.(\d+)\.(tmp|old)")
    for entry in path.parent.iterdir():
        match = left.fullmatch(entry.name)
        if match is None or Path(f"/proc/{match[1]}").exists():
            continue
        if match[2] == "old" and not os.path.lexists(path):
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
