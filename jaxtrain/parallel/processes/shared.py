"""Whether a folder is one that all processes write to and read from: each leaves a file there."""

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from jaxtrain.errors import one_line

# How long a shared folder may take to show what is written to it.
SHOW_SECONDS, RETRY_SECONDS = 5.0, 0.1
FIX = "choose a folder that all processes share and may write to"


def write(index: int, file: Any) -> str:
    """Writes a file that holds its own name.

    Args:
        index: this process.
        file: its path, as all in this module a `Path`, or a bucket's path with the same methods.

    Returns:
        What is wrong, one line; nothing if it is written.
    """
    try:
        file.write_text(file.name)
    except Exception as error:  # a bucket's library has its own
        why = (isinstance(error, OSError) and error.strerror) or one_line(error)
        return f"process {index} cannot write to {file.parent}: {why}; {FIX}"
    return ""


def read(index: int, folder: Any, files: Mapping[int, str]) -> str:
    """Looks for the files of other processes, at once or soon.

    Args:
        index: this process.
        folder: where they have to be.
        files: their names by process.

    Returns:
        Whose is not there, one line; nothing if all are.
    """
    deadline = time.monotonic() + SHOW_SECONDS
    for process, name in files.items():
        while not _is_there(folder / name):
            if time.monotonic() > deadline:
                return (
                    f"process {index} does not see what process {process} wrote to {folder}; {FIX}"
                )
            time.sleep(RETRY_SECONDS)
    return ""


def _is_there(file: Any) -> bool:
    with contextlib.suppress(Exception):
        return bool(file.read_text() == file.name)
    return False


def remove(file: Any) -> None:
    """Removes a file, if that can be done."""
    with contextlib.suppress(Exception):
        file.unlink(missing_ok=True)
