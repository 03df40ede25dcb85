"""What the other verbs need of a run's folder: they read it, and lock nothing."""

import dataclasses
import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxtrain.config import Config, load_json
from jaxtrain.errors import JaxtrainError, UsageError
from jaxtrain.files import (
    AnyPath,
    atomic_write_bytes,
    atomic_write_json,
    explained,
    is_bucket,
    place,
)
from jaxtrain.workdir.names import CHECKPOINTS, CONFIG, EVAL


@dataclasses.dataclass(frozen=True)
class StoredRun:
    """What the other verbs need of a run.

    Attributes:
        path: the folder, local or in a bucket.
        config: the config of its last start.
    """

    path: AnyPath
    config: Config

    @property
    def checkpoints_dir(self) -> AnyPath:
        """Where its checkpoints are."""
        return self.path / CHECKPOINTS


def read_run(path: AnyPath | str) -> StoredRun:
    """Reads a run's folder without writing or locking anything.

    Raises:
        UsageError: there is no run, or its files are damaged or may not be read.
    """
    path = place(path)
    try:
        with explained(path):
            if not path.exists():
                raise UsageError(f"workdir {path} does not exist; {_suggestion(path)}")
            if not path.is_dir():
                raise UsageError(f"workdir {path} is a file; name the folder of a run")
            if not (path / CONFIG).is_file():
                raise UsageError(
                    f"{path} is not the folder of a run: no {CONFIG}; {_suggestion(path)}"
                )
            return StoredRun(path, load_json(path / CONFIG))
    except PermissionError as error:
        raise UsageError(
            f"workdir {path} cannot be read: {error.strerror}; make it readable"
        ) from error


def try_write_eval(path: AnyPath, name: str, value: Any) -> str | None:
    """Writes `eval/<name>` into a run's folder, if that is writable.

    Args:
        path: the run's folder.
        name: `<split>-<step>.json`.
        value: the metrics; NaN and the infinities become null.

    Returns:
        None, or a warning that says why nothing was written.
    """
    return _tried(path, lambda folder: atomic_write_json(folder / name, value))


def try_write_eval_file(path: AnyPath, name: str, content: bytes) -> str | None:
    """Writes another file of an evaluation beside it, as `try_write_eval` does.

    Args:
        path: the run's folder.
        name: the file's name.
        content: what is to be in it.
    """
    return _tried(path, lambda folder: atomic_write_bytes(folder / name, content))


def eval_path(path: AnyPath, name: str) -> AnyPath:
    """Where they write the file of that name."""
    return path / EVAL / name


def _tried(path: AnyPath, write: Callable[[AnyPath], None]) -> str | None:
    folder = path / EVAL
    try:
        if not is_bucket(path):
            folder.mkdir(exist_ok=True)
        write(folder)
    except OSError as error:
        return f"warning: the result is not kept in {folder}: {error.strerror}"
    except JaxtrainError as error:
        return f"warning: the result is not kept: {error}"
    return None


def _suggestion(path: AnyPath) -> str:
    """Words that lead to a run near `path`: one around it, or those beside it and in runs/."""
    for parent in path.parents:
        if parent.name and (parent / CONFIG).is_file():
            return f"did you mean {parent}?"
    # A look into all folders beside it takes too long in a bucket.
    roots = [] if is_bucket(path) else [path.parent]
    names = {
        str(config.parent): config.parent.name
        for root in (*roots, Path("runs"))
        for config in sorted(root.glob(f"*/{CONFIG}"))
    }
    near = difflib.get_close_matches(path.name, set(names.values()), n=3)
    runs = [run for name in near for run in names if names[run] == name] or list(names)[:3]
    return f"did you mean {' or '.join(runs)}?" if runs else f"there is no run beside {path}"
