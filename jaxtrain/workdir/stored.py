"""What the other verbs need of a run's folder: they read it, and lock nothing."""

import dataclasses
import difflib
import re
from pathlib import Path
from typing import Any

from jaxtrain.config import Config, load_json
from jaxtrain.errors import JaxtrainError, UsageError
from jaxtrain.files import atomic_write_json

CONFIG = "config.json"
# What `gs://bucket/run` looks like, also after `Path` took one of its slashes.
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


@dataclasses.dataclass(frozen=True)
class StoredRun:
    """What the other verbs need of a run.

    Attributes:
        path: the folder.
        config: the config of its last start.
    """

    path: Path
    config: Config


def read_run(path: Path | str) -> StoredRun:
    """Reads a run's folder without writing or locking anything.

    Raises:
        UsageError: there is no run, or its files are damaged.
    """
    path = local(path)
    if not path.exists():
        raise UsageError(f"workdir {path} does not exist; {_suggestion(path)}")
    if not path.is_dir():
        raise UsageError(f"workdir {path} is a file; name the folder of a run")
    if not (path / CONFIG).is_file():
        raise UsageError(f"{path} is not the folder of a run: no {CONFIG}; {_suggestion(path)}")
    return StoredRun(path, load_json(path / CONFIG))


def try_write_eval(path: Path, name: str, value: Any) -> str | None:
    """Writes `eval/<name>` into a run's folder, if that is writable.

    Args:
        path: the run's folder.
        name: `<split>-<step>.json`.
        value: the metrics; NaN and the infinities become null.

    Returns:
        None, or a warning that says why nothing was written.
    """
    try:
        (path / "eval").mkdir(exist_ok=True)
        atomic_write_json(path / "eval" / name, value)
    except OSError as error:
        return f"warning: the result is not kept in {path / 'eval'}: {error.strerror}"
    except JaxtrainError as error:
        return f"warning: the result is not kept: {error}"
    return None


def local(path: Path | str) -> Path:
    """Returns `path` as a Path.

    Raises:
        UsageError: it is not on a local file system.
    """
    if SCHEME.match(str(path)):
        raise UsageError(f"workdir {path}: buckets are not supported yet; use a local folder")
    return Path(path)


def _suggestion(path: Path) -> str:
    """Words that lead to a run near `path`: one around it, or those beside it and in runs/."""
    for parent in path.parents:
        if (parent / CONFIG).is_file():
            return f"did you mean {parent}?"
    names = {
        str(config.parent): config.parent.name
        for root in (path.parent, Path("runs"))
        for config in sorted(root.glob(f"*/{CONFIG}"))
    }
    near = difflib.get_close_matches(path.name, set(names.values()), n=3)
    runs = [run for name in near for run in names if names[run] == name] or list(names)[:3]
    return f"did you mean {' or '.join(runs)}?" if runs else f"there is no run beside {path}"
