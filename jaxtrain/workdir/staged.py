"""The logs of a run in a bucket.

Nothing can be appended to there: they are written on the local disk, and brought as whole objects.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from jaxtrain.errors import CheckpointError
from jaxtrain.files import AnyPath, bucket
from jaxtrain.workdir.names import LOCK, METRICS, TENSORBOARD

PREFIX = "jaxtrain-logs-"


class Staged:
    """A local folder that stands for the logs of a run's folder in a bucket.

    metrics.jsonl is fetched. An event file, which is made anew at each start, is stood for by one
    of the same name, as empty as it is there.

    A process that is killed cannot remove its folder, so the next one that has any does.

    Args:
        path: the run's folder.
    """

    def __init__(self, path: AnyPath) -> None:
        self._path = path
        _remove_left()
        around = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = _held(around)
        # TensorBoard shows the folder's name.
        self.folder = around / path.name
        self.folder.mkdir()
        # What the bucket has, by the state of the local file that it was brought from.
        self._brought: dict[str, tuple[int, int]] = {}
        metrics = bucket.read(path / METRICS)
        if metrics is not None:
            self._stand_for(METRICS, metrics.content)
        events = path / TENSORBOARD
        for entry in list(events.iterdir()) if events.exists() else []:
            self._stand_for(f"{TENSORBOARD}/{entry.name}", b"-" if entry.stat().length else b"")

    def publish(self) -> None:
        """Makes the bucket have what is in the local folder.

        Raises:
            CheckpointError: it cannot be written.
        """
        names = {METRICS: self.folder / METRICS}
        names |= {f"{TENSORBOARD}/{file.name}": file for file in self._events()}
        for name, file in names.items():
            if file.exists() and self._brought.get(name) != _state(file):
                state = _state(file)
                bucket.write_whole(self._path / name, file.read_bytes())
                self._brought[name] = state
        for name in [name for name in self._brought if not (self.folder / name).exists()]:
            try:
                bucket.delete(self._path / name)
            except Exception as error:  # requests and Google's layers each have their own
                raise CheckpointError(
                    f"cannot write {self._path / name}: {bucket.explain(error)}; run the same "
                    "command again"
                ) from error
            del self._brought[name]

    def remove(self) -> None:
        """Removes the local folder."""
        shutil.rmtree(self.folder.parent, ignore_errors=True)
        os.close(self._lock)

    def _events(self) -> list[Path]:
        return sorted(path for path in (self.folder / TENSORBOARD).glob("*") if path.is_file())

    def _stand_for(self, name: str, content: bytes) -> None:
        file = self.folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
        self._brought[name] = _state(file)


def _held(folder: Path) -> int:
    """Locks a new folder as long as this process lives, and no longer, however it ends."""
    lock = os.open(folder / f"{LOCK}.new", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    # With this name it is locked from the first moment.
    os.rename(folder / f"{LOCK}.new", folder / LOCK)
    return lock


def _remove_left() -> None:
    """Removes the folders of this user's processes that have ended; others keep theirs locked."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.stat(follow_symlinks=False).st_uid != os.getuid():
                continue
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)


def _state(file: Path) -> tuple[int, int]:
    """Changes with every write."""
    status = file.stat()
    return status.st_size, status.st_mtime_ns
