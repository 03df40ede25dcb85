"""A run's folder while it is trained: taken by one process, checked against its config."""

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxtrain.config import Config, difference, identity, load_json, to_json
from jaxtrain.errors import UsageError
from jaxtrain.files import atomic_write_json, atomic_write_text
from jaxtrain.workdir.stored import CONFIG, local

CLASSES, DATA, RESULT, LOCK = "classes.json", "data.json", "result.json", ".lock"

# A folder with no more than these was left by a start that died before it wrote its config.
LEFTOVER = re.compile(r"\.lock|(classes|data)\.json|\.(config|classes|data)\.json\.\d+\.tmp")
LENGTHS = ("train.epochs", "train.steps")


def default_path(config_name: str, config: Config) -> Path:
    """Returns `runs/<config_name>-<identity>`: the same settings always find the same run."""
    return Path("runs") / f"{config_name}-{identity(config)}"


def fresh_path(path: Path) -> Path:
    """Returns `path`, or the first of `path-2`, `path-3`, ... if it exists, that does not."""
    path = path if path.name else path.resolve()
    candidate, number = path, 1
    while os.path.lexists(candidate):
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


@dataclasses.dataclass(frozen=True)
class DataIdentity:
    """What a run's data is, wherever it lies: a run goes on with the same data only.

    Attributes:
        class_names: one name a class, in label order; kept in classes.json.
        fingerprints: role of a split (`train`, `eval`) to its checksum; kept in data.json.
    """

    class_names: tuple[str, ...]
    fingerprints: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Workdir:
    """The folder of a run that this process trains.

    Attributes:
        path: the folder.
        extended: whether this start made the run longer.
        previous: the config of the start before; None for a new run.
    """

    path: Path
    extended: bool
    previous: Config | None

    @property
    def checkpoints_dir(self) -> Path:
        """Where checkpoints go."""
        return self.path / "checkpoints"

    @property
    def metrics_path(self) -> Path:
        """The log of metrics."""
        return self.path / "metrics.jsonl"

    @property
    def tensorboard_dir(self) -> Path:
        """Where TensorBoard events go."""
        return self.path / "tensorboard"

    def finished(self) -> dict[str, Any] | None:
        """Returns the result of a finished run; None if it is not finished.

        A damaged result proves nothing: the run goes on from its last checkpoint and writes it
        again.
        """
        try:
            result = json.loads((self.path / RESULT).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        finished = (
            isinstance(result, dict)
            and result.get("status") == "finished"
            and {"step", "train", "eval", "best"} <= set(result)
        )
        return result if finished else None

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Writes the run's result, strict JSON in the order given; the last file of a run.

        Raises:
            CheckpointError: the file cannot be written.
        """
        atomic_write_json(self.path / RESULT, result)


@contextlib.contextmanager
def open_run(
    path: Path | str,
    config: Config,
    data: DataIdentity,
    *,
    extend: bool = False,
) -> Iterator[Workdir]:
    """Takes a folder for a training run, new or to be resumed, and holds it while inside.

    The hold is the kernel's lock on a file, which ends with the process, however that ends.

    Args:
        path: the folder; made if absent.
        config: the run's config. It must be that of the run already there, but for the keys that
            may change on resume.
        data: the run's data. It must be that of the run already there.
        extend: whether the run may be made longer than it was (by the key that set its length).

    Yields:
        The folder, with config.json, classes.json and data.json written.

    Raises:
        UsageError: the folder is not ours, held by a live run, not writable, or holds a run with
            another config or other data. Nothing has been changed then.
        CheckpointError: the disk is full.
    """
    path = local(path)
    _refuse_foreign(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise UsageError(
            f"cannot write to workdir {path}: {error.strerror}; choose another with --workdir"
        ) from error
    try:
        _hold(lock, path)
        yield _take(path, config, data, extend=extend)
    finally:
        os.close(lock)


def _refuse_foreign(path: Path) -> None:
    """Refuses a place that is neither free nor a run's folder."""
    try:
        entries = sorted(os.listdir(path))
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise UsageError(
            f"workdir {path}: a file is in its place; choose another with --workdir"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot read workdir {path}: {error.strerror}") from error
    others = [entry for entry in entries if not LEFTOVER.fullmatch(entry)]
    if others and CONFIG not in others:
        raise UsageError(
            f"workdir {path} is not the folder of a run: it holds {others[0]} but no {CONFIG}; "
            "choose an empty or a new folder with --workdir"
        )


def _hold(lock: int, path: Path) -> None:
    """Takes the lock and leaves word of who has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 1000, 0).decode(errors="replace").strip() or "another process"
        raise UsageError(
            f"workdir {path} is held by a live run, {holder}; wait for it, stop it, or start "
            "another run beside it with --fresh"
        ) from None
    except OSError as error:
        raise UsageError(
            f"cannot lock workdir {path}: {error.strerror}; choose another file system"
        ) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def _take(path: Path, config: Config, data: DataIdentity, *, extend: bool) -> Workdir:
    """Writes what a new run is, or checks it against the run already there."""
    for leftover in path.glob(".*.json.*.tmp"):
        leftover.unlink()
    if not (path / CONFIG).exists():
        atomic_write_json(path / CLASSES, data.class_names)
        atomic_write_json(path / DATA, data.fingerprints)
        atomic_write_text(path / CONFIG, to_json(config))  # last: it makes the folder a run's
        return Workdir(path, extended=False, previous=None)
    previous = load_json(path / CONFIG)
    changes = difference(previous, config)
    _refuse_changes(path, changes, extend=extend)
    _refuse_other_classes(path, data.class_names)
    _refuse_other_data(path, data.fingerprints)
    if changes:
        # Before the longer config is there, or a crash between the two would leave a run that
        # looks finished.
        (path / RESULT).unlink(missing_ok=True)
    if previous != config:
        atomic_write_text(path / CONFIG, to_json(config))
    return Workdir(path, extended=bool(changes), previous=previous)


def _is_longer(key: str, old: Any, new: Any) -> bool:
    return key in LENGTHS and old is not None and new is not None and new > old


def _refuse_changes(path: Path, changes: Sequence[tuple[str, Any, Any]], *, extend: bool) -> None:
    """Refuses all changes but, with `extend`, of a length to a larger one."""
    only_longer = all(_is_longer(*change) for change in changes)
    if only_longer and (extend or not changes):
        return
    shown = "; ".join(f"{key}: {old} -> {new}" for key, old, new in changes)
    if only_longer:
        fix = "make it longer with --extend"
    elif extend:
        fix = "--extend only allows a larger train.epochs or train.steps, whichever the run has"
    else:
        fix = "take the old values, or another --workdir"
    raise UsageError(
        f"workdir {path} holds a run with another config: {shown}; {fix}, or start another run "
        "with --fresh"
    )


def _refuse_other_classes(path: Path, new: Sequence[str]) -> None:
    old = _load(path / CLASSES)
    if not isinstance(old, list):
        raise UsageError(f"{path / CLASSES} is damaged: it must hold a list of class names")
    if len(old) != len(new):
        raise UsageError(
            f"the data has {len(new)} classes, but the run in {path} has {len(old)}; "
            "put the data back or start another run with --fresh"
        )
    for index, (before, after) in enumerate(zip(old, new, strict=True)):
        if before != after:
            raise UsageError(
                f"class {index} of the data is {after!r}, but {before!r} in the run in "
                f"{path}; put the data back or start another run with --fresh"
            )


def _refuse_other_data(path: Path, new: Mapping[str, str]) -> None:
    old = _load(path / DATA)
    if not isinstance(old, dict):
        raise UsageError(f"{path / DATA} is damaged: it must hold a checksum for each split")
    for role, fingerprint in new.items():
        if old.get(role) != fingerprint:
            raise UsageError(
                f"the {role} split has changed since the run in {path} began (its checksum was "
                f"{old.get(role)}, it is {fingerprint}); put the data back or start another run "
                "with --fresh"
            )


def _load(path: Path) -> Any:
    """The JSON value in `path`; None if it holds none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValueError:
        return None
