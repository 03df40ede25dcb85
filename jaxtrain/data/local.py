"""Paths of data, which lies on a local disk."""

import os
from pathlib import Path

from jaxtrain.errors import UsageError
from jaxtrain.files import expanded
from jaxtrain.files.places import SCHEME


def refuse_remote(word: str, path: str | Path, *, what: str) -> None:
    """Refuses a text that names a place on no local disk, as `gs://bucket/a` does.

    Args:
        word: the text, as a person wrote it.
        path: the local path that it would be; one that is there is taken for that.
        what: what is refused, for the message.

    Raises:
        UsageError: it names such a place.
    """
    if SCHEME.match(word) and not os.path.lexists(path):
        raise not_local(what)


def not_local(what: str) -> UsageError:
    """The error for what is on no local disk."""
    return UsageError(f"{what} is not local; copy it to a local disk first")


def data_path(text: str) -> Path:
    """The local path that `data.path` names.

    Raises:
        UsageError: it names a place on no local disk, or the home folder of nobody.
    """
    path = expanded(text)
    refuse_remote(text, path, what=f"data.path={text}")
    return path
