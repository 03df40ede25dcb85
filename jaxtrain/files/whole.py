"""Files that get to their place whole: a reader or a crash finds the old one or the new one."""

import errno
import json
import math
import numbers
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxtrain.errors import CheckpointError, UsageError
from jaxtrain.files.places import AnyPath
from jaxtrain.files.temporary import temporary, unique_beside

# Errors that a person mends by choosing another folder, not by making room.
NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)


def atomic_write_bytes(path: AnyPath, content: bytes) -> None:
    """Writes a whole file or nothing: beside its place, to the disk, then renamed into it.

    Where several threads or processes write it at once, one of their contents is there afterwards.
    In a bucket it is one object, which the service replaces as a whole.

    Raises:
        UsageError: the place is not writable.
        CheckpointError: the file cannot be written for another reason, such as a full disk.
    """
    if not isinstance(path, Path):
        from jaxtrain.files.bucket import write_whole  # noqa: PLC0415 - as in `places`

        write_whole(path, content)
        return
    try:
        _replace(path, content)
    except OSError as error:
        if error.errno in NOT_WRITABLE:
            raise UsageError(
                f"cannot write {path}: {error.strerror}; make it writable or choose another folder"
            ) from error
        raise CheckpointError(
            f"cannot write {path}: {error.strerror}; make room, then run the same command again"
        ) from error


def atomic_write_text(path: AnyPath, text: str) -> None:
    """`atomic_write_bytes` of text, as UTF-8."""
    atomic_write_bytes(path, text.encode())


def atomic_write_json(path: AnyPath, value: Any) -> None:
    """Writes `value` as strict JSON, indented, keys in the order given; whole or not at all.

    NaN and the infinities, which JSON has no words for, become null.

    Raises:
        UsageError: the place is not writable.
        CheckpointError: the file cannot be written for another reason, such as a full disk.
    """
    atomic_write_text(path, json.dumps(strict(value), indent=2, allow_nan=False) + "\n")


def _replace(path: Path, content: bytes) -> None:
    with temporary(unique_beside(path)) as beside:
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # A rename is on the disk only when its folder is.
    finally:
        os.close(folder)


def strict(value: Any) -> Any:
    """`value` in JSON's own types: NumPy's numbers as Python's, what is not finite as None."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: strict(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return value


def expanded(path: str) -> Path:
    """The path with `~` and `~user` replaced by home folders.

    Raises:
        UsageError: there is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UsageError(f"path {path!r}: there is no such user; write the whole path") from error
