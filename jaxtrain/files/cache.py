"""Where files lie that are only kept to save the work of making them again."""

import hashlib
import os
from pathlib import Path


def user_cache() -> Path | None:
    """The folder `jaxtrain` in the user's cache folder (XDG); None: the user has none."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        cache = os.path.expanduser("~/.cache")
    # Not every user has a home.
    return Path(cache, "jaxtrain") if os.path.isabs(cache) else None


def places_for(folder: Path, kind: str, name: str) -> list[Path]:
    """Where a file about a folder may lie, best first: hidden in it, else in the user's cache.

    Args:
        folder: what it is about.
        kind: what the files of this sort have a folder for in the cache.
        name: the file's name, without the dot that hides it.
    """
    folder = folder.resolve()
    places = [folder / f".{name}"]
    cache = user_cache()
    if cache is not None:
        key = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        places.append(cache / kind / key / name)
    return places
