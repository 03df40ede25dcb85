"""What becomes of folders that are no good as steps: they make room, but stay to be looked at."""

import pathlib
import shutil

from jaxtrain.checkpoint.orbax import cause, is_committed, list_steps
from jaxtrain.errors import CheckpointError
from jaxtrain.files import AnyPath, is_bucket


def not_whole(directory: AnyPath) -> list[str]:
    """Names of folders that Orbax takes for steps, but that are none; it would never save those.

    In a bucket a save that was cut short leaves such a folder, and Orbax removes it.
    """
    if not directory.is_dir():
        return []
    whole = set(map(str, list_steps(directory)))
    names = sorted(entry.name for entry in directory.iterdir())
    return [
        name
        for name in names
        if name.isdecimal() and name not in whole and is_committed(directory / name)
    ]


def remove(directory: AnyPath, name: str) -> None:
    """Removes the rest of a step that was being removed.

    Raises:
        CheckpointError: it cannot be.
    """
    path = directory / name
    try:
        if isinstance(path, pathlib.Path):
            shutil.rmtree(path)
        else:
            path.rmtree()
    except Exception as error:  # a bucket's client has its own
        raise CheckpointError(
            f"what is left of checkpoint {path} cannot be removed: {cause(error)}; remove it"
        ) from error


def set_aside(directory: AnyPath, name: str) -> str:
    """Renames a damaged step to the first free `<name>.damaged`, `<name>.damaged-2`, ...

    In a bucket every object is moved, and what a crash leaves in the step's place is damaged still.

    Returns:
        Its new path.

    Raises:
        CheckpointError: it cannot be moved.
    """
    aside, number = directory / f"{name}.damaged", 1
    while aside.exists():
        number += 1
        aside = directory / f"{name}.damaged-{number}"
    try:
        _move(directory / name, aside)
    except Exception as error:  # a bucket's client has its own
        raise CheckpointError(
            f"damaged checkpoint {directory / name} cannot be set aside: {cause(error)}; "
            "move it away"
        ) from error
    return str(aside)


def _move(path: AnyPath, to: AnyPath) -> None:
    if is_bucket(path):
        from jaxtrain.files import bucket  # noqa: PLC0415 - an extra, see `files.places`

        bucket.move(path, to)
    else:
        path.rename(to)
