"""Folders that get to their place whole."""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from jaxtrain.errors import CheckpointError, UsageError
from jaxtrain.files.temporary import beside, left_beside, temporary
from jaxtrain.files.whole import NOT_WRITABLE

# No room will make it a place.
_NO_PLACE = (
    *NOT_WRITABLE,
    errno.EEXIST,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
)


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
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        bring_back(path)
        place = beside(path)
    with temporary(place) as folder:
        with writing(path):
            folder.mkdir()
        yield folder
        with writing(path):
            _flush(folder)
            _move(folder, path, aside=folder.with_suffix(".old"), replace=replace)


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
        if error.errno in _NO_PLACE:
            raise UsageError(
                f"cannot write {path}: {said}; make it writable or choose another folder"
            ) from error
        raise CheckpointError(
            f"cannot write {path}: {said}; make room, then run the same command again"
        ) from error


def _move(folder: Path, path: Path, *, aside: Path, replace: bool) -> None:
    """Brings a folder to its place."""
    if not os.path.lexists(path):
        folder.rename(path)
        return
    if not replace:
        raise UsageError(f"{path} was made by someone else meanwhile; choose another place")
    path.rename(aside)
    try:
        folder.rename(path)
    except OSError:
        aside.rename(path)
        raise
    if aside.is_symlink():
        aside.unlink()
    else:
        shutil.rmtree(aside, ignore_errors=True)


def bring_back(path: Path) -> None:
    """Brings back what a killed process had put aside for `path`; removes it if that is taken."""
    if not path.parent.is_dir():
        return
    for aside in left_beside(path, "old"):
        if os.path.lexists(path):
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.rename(path)


def _flush(folder: Path) -> None:
    """Brings a folder and all in it to the disk."""
    for entry in [*folder.rglob("*"), folder]:
        descriptor = os.open(entry, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
