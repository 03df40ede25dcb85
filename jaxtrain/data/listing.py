"""Files below a folder, and what they hold."""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from jaxtrain.errors import DataError, UsageError

# More than an image of `decode.MAX_PIXELS` takes: 16 bits of 4 channels are 0.7 GB.
_MAX_FILE_BYTES: Final = 2**30

_T = TypeVar("_T")


def suffix_of(path: str) -> str:
    """What a file's name ends in, in lower case, with its dot; empty if it has none."""
    return os.path.splitext(path)[1].lower()


def files_in(top: str) -> Iterator[str]:
    """Files at any depth, sorted in each folder, without hidden ones and what hidden folders hold.

    Links are followed, but to no folder that `top` lies in, and each folder is looked at once: by
    its own place if that is below `top`, else by the first link to it. Where a link leads nowhere
    it comes too: that is told when it is read.

    Raises:
        UsageError: a folder cannot be read.
    """
    seen = {_identity(str(folder)) for folder in Path(os.path.realpath(top)).parents}
    folders, links = [top], list[str]()
    while folders or links:
        folder = folders.pop() if folders else links.pop(0)
        identity = _identity(folder)
        if identity in seen:
            continue
        seen.add(identity)
        below = []
        for entry in _shown(folder):
            is_link = entry.is_symlink()
            if is_link and os.path.isdir(entry.path):
                links.append(entry.path)
            elif not is_link and entry.is_dir():
                below.append(entry.path)
            elif is_link or entry.is_file():
                yield entry.path
        folders += reversed(below)


def _identity(folder: str) -> tuple[int, int]:
    with _explained(folder):
        status = os.stat(folder)
        return status.st_dev, status.st_ino


def _shown(folder: str) -> list["os.DirEntry[str]"]:
    with _explained(folder), os.scandir(folder) as entries:
        shown = [entry for entry in entries if not entry.name.startswith(".")]
        return sorted(shown, key=lambda entry: entry.name)


@contextlib.contextmanager
def _explained(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{error.filename or folder} cannot be read: {error.strerror}; make it readable, or "
            "name its files"
        ) from error


def content_of(path: str) -> bytes:
    """All bytes of an image's file.

    Raises:
        DataError: it cannot be read, or cannot be an image's.
    """
    return _opened(path, _content)


def beginning_of(path: str, size: int) -> tuple[bytes, os.stat_result]:
    """The first bytes of a file, at most `size`, and its status after they were read.

    Raises:
        DataError: it cannot be read.
    """
    return _opened(path, lambda descriptor: (_read(descriptor, size), os.fstat(descriptor)))


def _opened(path: str, read: Callable[[int], _T]) -> _T:
    """What is read from a file's descriptor."""
    try:
        # One that is no file at all, as a pipe, is not waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            return read(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise DataError(f"the file cannot be read: {error.strerror or error}") from error


def _content(descriptor: int) -> bytes:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise DataError("the file is no regular one")
    if status.st_size > _MAX_FILE_BYTES:
        raise DataError(
            f"the file has {status.st_size:,} bytes, more than the {_MAX_FILE_BYTES:,} "
            "that an image may have"
        )
    return _read(descriptor, status.st_size)


def _read(descriptor: int, size: int) -> bytes:
    content = os.read(descriptor, size)
    # A file system may hand over less at a time.
    while len(content) < size and (more := os.read(descriptor, size - len(content))):
        content += more
    return content
