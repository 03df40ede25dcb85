"""A run's folder while it is trained: taken by one process, checked against its config."""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxtrain.config import Config, identity, load_json, to_json
from jaxtrain.errors import CheckpointError, UsageError, one_line
from jaxtrain.files import (
    AnyPath,
    atomic_write_bytes,
    atomic_write_json,
    atomic_write_text,
    explained,
    is_bucket,
    place,
)
from jaxtrain.workdir.lock import locked
from jaxtrain.workdir.names import (
    CHECKPOINTS,
    CLASSES,
    CONFIG,
    DATA,
    LEFT_OUT,
    LEFTOVER,
    METRICS,
    RESULT,
    SWEEP,
    TENSORBOARD,
)
from jaxtrain.workdir.resume import DataIdentity, refuse_another_run

if TYPE_CHECKING:
    from jaxtrain.workdir.lease import Lease
    from jaxtrain.workdir.staged import Staged


def default_path(config_name: str, config: Config) -> Path:
    """Returns `runs/<config_name>-<identity>`: the same settings always find the same run."""
    return Path("runs") / f"{config_name}-{identity(config)}"


def fresh_path(path: AnyPath) -> AnyPath:
    """Returns `path`, or the first of `path-2`, `path-3`, ... if it exists, that does not.

    Raises:
        UsageError: it is in a bucket that cannot be read.
    """
    path = path if path.name else path.resolve()
    candidate, number = path, 1
    with explained(path):
        while candidate.exists() or (isinstance(candidate, Path) and candidate.is_symlink()):
            number += 1
            candidate = path.with_name(f"{path.name}-{number}")
    return candidate


@dataclasses.dataclass(frozen=True)
class Workdir:
    """The folder of a run that this process trains.

    Attributes:
        path: the folder, local or in a bucket.
        extended: whether this start made the run longer.
        previous: the config of the start before; None for a new run.
        lease: the hold on a folder in a bucket.
        staged: where its logs are written.
    """

    path: AnyPath
    extended: bool
    previous: Config | None
    lease: "Lease | None" = None
    staged: "Staged | None" = None

    @property
    def checkpoints_dir(self) -> AnyPath:
        """Where checkpoints go."""
        return self.path / CHECKPOINTS

    @property
    def metrics_path(self) -> Path:
        """The log of metrics, a local file."""
        return self._logs / METRICS

    @property
    def tensorboard_dir(self) -> Path:
        """Where TensorBoard events go, a local folder."""
        return self._logs / TENSORBOARD

    @property
    def _logs(self) -> Path:
        if self.staged is not None:
            return self.staged.folder
        assert isinstance(self.path, Path), "who does not hold a folder in a bucket writes no logs"
        return self.path

    def check_held(self) -> None:
        """Looks whether the folder is still this run's; a local one is, while the process lives.

        Raises:
            CheckpointError: another run has taken it over.
        """
        if self.lease is not None:
            self.lease.check()

    def publish(self) -> None:
        """Brings the logs to where the run lies: before each save, which must not know more.

        Raises:
            CheckpointError: they cannot be written, or another run has the folder now.
        """
        self.check_held()
        if self.staged is not None:
            self.staged.publish()

    def finished(self) -> dict[str, Any] | None:
        """Returns the result of a finished run; None if it is not finished.

        A damaged result proves nothing: the run goes on from its last checkpoint and writes it
        again.
        """
        try:
            with explained(self.path):
                result = json.loads((self.path / RESULT).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        finished = (
            isinstance(result, dict)
            and result.get("status") == "finished"
            and {"step", "train", "eval", "best"} <= set(result)
        )
        return result if finished else None

    def write_left_out(self, files: Mapping[str, Mapping[str, str]]) -> None:
        """Writes why files are no examples, by split and file, if there are any.

        Raises:
            CheckpointError: the file cannot be written.
        """
        if files:
            atomic_write_json(self.path / LEFT_OUT, {name: dict(x) for name, x in files.items()})

    def has_sweep(self) -> bool:
        """Whether the picture of a sweep is there."""
        return (self.path / SWEEP).exists()

    def write_sweep(self, picture: bytes) -> None:
        """Writes the picture of a sweep.

        Raises:
            CheckpointError: the file cannot be written.
        """
        atomic_write_bytes(self.path / SWEEP, picture)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Writes the run's result, strict JSON in the order given; the last file of a run.

        Raises:
            CheckpointError: the file cannot be written.
        """
        self.publish()
        atomic_write_json(self.path / RESULT, result)


@contextlib.contextmanager
def open_run(
    path: AnyPath | str,
    config: Config,
    data: DataIdentity,
    *,
    extend: bool,
    say: Callable[[str], None],
) -> Iterator[Workdir]:
    """Takes a folder for a training run, new or to be resumed, and holds it while inside.

    A local folder is held by the kernel's lock on a file, which ends with the process, however
    that ends; one in a bucket by a lease, which is stale some time after.

    Args:
        path: the folder; made if absent.
        config: the run's config. It must be that of the run already there, if that has left
            anything yet, but for the keys that may change on resume.
        data: the run's data, likewise.
        extend: whether the run may be made longer than it was (by the key that set its length).
        say: told in one line that a lease keeps it waiting.

    Yields:
        The folder, with config.json, classes.json and data.json written.

    Raises:
        UsageError: the folder is not ours, held by a live run, not writable, or holds a run with
            another config or other data. Nothing has been changed then.
        CheckpointError: the disk is full; or at the end the logs cannot be brought to a bucket.
    """
    path = place(path)
    with explained(path):
        _refuse_foreign(path)
    if is_bucket(path):
        with _open_in_bucket(path, config, data, extend=extend, say=say) as opened:
            yield opened
        return
    with locked(path):
        for leftover in path.glob(".*.json.*.tmp"):
            leftover.unlink()
        yield _take(path, config, data, extend=extend)


@contextlib.contextmanager
def _open_in_bucket(
    path: AnyPath,
    config: Config,
    data: DataIdentity,
    *,
    extend: bool,
    say: Callable[[str], None],
) -> Iterator[Workdir]:
    from jaxtrain.workdir.lease import leased  # noqa: PLC0415 - an extra, see `files.places`
    from jaxtrain.workdir.staged import Staged  # noqa: PLC0415

    with leased(path, say) as lease, contextlib.ExitStack() as stack:
        with explained(path):
            taken = _take(path, config, data, extend=extend)
            staged = Staged(path)
        stack.callback(staged.remove)
        opened = dataclasses.replace(taken, lease=lease, staged=staged)
        try:
            yield opened
        except BaseException:
            # What ended the run is what is to be said.
            with contextlib.suppress(CheckpointError):
                opened.publish()
            raise
        opened.publish()


def _refuse_foreign(path: AnyPath) -> None:
    """Refuses a place that is neither free nor a run's folder."""
    try:
        entries = sorted(entry.name for entry in path.iterdir())
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise UsageError(
            f"workdir {path}: a file is in its place; choose another with --workdir"
        ) from None
    except OSError as error:
        raise UsageError(
            f"cannot read workdir {path}: {error.strerror or one_line(error)}"
        ) from error
    others = [entry for entry in entries if not LEFTOVER.fullmatch(entry)]
    if others and CONFIG not in others:
        raise UsageError(
            f"workdir {path} is not the folder of a run: it holds {others[0]} but no {CONFIG}; "
            "choose an empty or a new folder with --workdir"
        )


def _has_saved(path: AnyPath) -> bool:
    """Whether a run has left anything: checkpoints, whole or not, or the line of a report.

    One that ended before, as at a file that it cannot read, has nothing that another config or
    mended data could contradict.
    """
    checkpoints = path / CHECKPOINTS
    saved = checkpoints.is_dir() and any(True for _ in checkpoints.iterdir())
    return saved or (path / RESULT).exists() or (path / METRICS).exists()


def _remove_events(folder: AnyPath) -> None:
    """Removes events of a run that has left none: its replicas' folders would stay for ever."""
    if isinstance(folder, Path):
        shutil.rmtree(folder, ignore_errors=True)
    elif folder.exists():
        folder.rmtree()


def _take(path: AnyPath, config: Config, data: DataIdentity, *, extend: bool) -> Workdir:
    """Writes what a new run is, or checks it against the run already there."""
    previous = load_json(path / CONFIG) if (path / CONFIG).exists() else None
    if previous is None or not _has_saved(path):
        (path / LEFT_OUT).unlink(missing_ok=True)
        _remove_events(path / TENSORBOARD)
        atomic_write_json(path / CLASSES, data.class_names)
        atomic_write_json(path / DATA, data.fingerprints)
        atomic_write_text(path / CONFIG, to_json(config))  # last: it makes the folder a run's
        return Workdir(path, extended=False, previous=previous)
    longer = refuse_another_run(path, previous, config, data, extend=extend)
    if longer:
        # Before the longer config is there, or a crash between the two would leave a run that
        # looks finished.
        (path / RESULT).unlink(missing_ok=True)
    if previous != config:
        atomic_write_text(path / CONFIG, to_json(config))
    return Workdir(path, extended=longer, previous=previous)
