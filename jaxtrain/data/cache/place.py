"""The folder of the images that are kept on disk, and what is said where it cannot be used."""

import errno
import os
import resource
import stat
from pathlib import Path
from typing import Final

from jaxtrain.errors import UsageError
from jaxtrain.files import expanded, is_bucket, user_cache

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MANY_OPEN: Final = (errno.EMFILE, errno.ENFILE)


def cache_folder(cache_path: str | None) -> Path:
    """Where decoded images are kept: `data.cache_path`, else in the user's cache folder.

    Raises:
        UsageError: it is a bucket, or there is no such folder.
    """
    if cache_path is None:
        cache = user_cache()
        if cache is None:
            raise UsageError(
                "data.cache=disk: this user has no home folder; set data.cache_path to a folder"
            )
        return cache / "images"
    if is_bucket(cache_path):
        raise UsageError(f"data.cache_path={cache_path} is no local folder; set it to one")
    return expanded(cache_path)


def check_usable(folder: Path) -> None:
    """Looks whether a folder can be made and written to, and changes nothing.

    Raises:
        UsageError: it cannot.
    """
    try:
        there = existing(folder)
        if not stat.S_ISDIR(os.stat(there).st_mode):
            raise _refused(errno.ENOTDIR, there)
        if os.statvfs(there).f_flag & os.ST_RDONLY:
            raise _refused(errno.EROFS, there)
        listed = os.R_OK if there == folder else 0
        if not os.access(there, os.W_OK | os.X_OK | listed, effective_ids=True):
            raise _refused(errno.EACCES, there)
    except OSError as error:
        raise unusable(folder, error) from error


def existing(folder: Path) -> Path:
    """The folder, else the nearest place above it that is there.

    Raises:
        OSError: it cannot be told, or a link leads nowhere.
    """
    for place in folder, *folder.parents:
        try:
            os.stat(place)
        except (FileNotFoundError, NotADirectoryError):
            if place.is_symlink():
                raise
        else:
            return place
    raise _refused(errno.ENOENT, folder)


def unusable(folder: Path, error: OSError) -> UsageError:
    """What to say of an error of a folder or of a file in it."""
    if error.errno in _FULL:
        return no_room(f"{folder} is full ({error.strerror})")
    place = error.filename or folder
    if error.errno in _MANY_OPEN:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return UsageError(
            f"data.cache=disk: {place} cannot be opened: {error.strerror}; raise the number of "
            f"files that may be open, {limit} for this process (ulimit -n), or set "
            "data.cache=memory"
        )
    return UsageError(
        f"data.cache=disk: {place} cannot be used: {error.strerror}; set data.cache_path to a "
        "folder that can be written, or set data.cache=memory"
    )


def no_room(said: str) -> UsageError:
    """What to say where images do not fit."""
    return UsageError(
        f"data.cache=disk: {said}; make room, set data.cache_path to a folder on another disk, or "
        "set data.cache=memory"
    )


def _refused(code: int, place: Path) -> OSError:
    return OSError(code, os.strerror(code), str(place))
