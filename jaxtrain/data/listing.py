"""Files below a folder, and what they hold."""

import os
import stat
from collections.abc import Iterator
from typing import Final

from jaxtrain.errors import DataError, UsageError

# More than an image of `decode.MAX_PIXELS` takes: 16 bits of 4 channels are 0.7 GB.
_MAX_FILE_BYTES: Final = 2**30


def suffix_of(path: str) -> str:
    """What a file's name ends in, in lower case, with its dot; empty if it has none."""
    return os.path.splitext(path)[1].lower()


def files_in(top: str) -> Iterator[str]:
    """Files at any depth, in any order, without hidden ones and what lies in hidden folders.

    Links are followed. Where one leads nowhere it comes too: that is told when it is read.

    Raises:
        UsageError: a folder cannot be read.
    """
    folders: list[tuple[str, frozenset[tuple[int, int]]]] = [(top, frozenset())]
    while folders:
        folder, above = folders.pop()
        try:
            status = os.stat(folder)
            identity = (status.st_dev, status.st_ino)
            if identity in above:
                continue  # a link to a folder that it lies in
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    is_link = entry.is_symlink()
                    if os.path.isdir(entry.path) if is_link else entry.is_dir():
                        folders.append((entry.path, above | {identity}))
                    elif is_link or entry.is_file():
                        yield entry.path
        except OSError as error:
            raise UsageError(
                f"{error.filename or folder} cannot be read: {error.strerror}; make it readable, "
                "or name its files"
            ) from error


def content_of(path: str) -> bytes:
    """All bytes of an image's file.

    Raises:
        DataError: it cannot be read, or cannot be an image's.
    """
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise DataError("the file is no regular one")
        if status.st_size > _MAX_FILE_BYTES:
            raise DataError(
                f"the file has {status.st_size:,} bytes, more than the {_MAX_FILE_BYTES:,} "
                "that an image may have"
            )
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError as error:
        raise DataError(f"the file cannot be read: {error.strerror or error}") from error
