"""What is known of files from an earlier look at them."""

import contextlib
import dataclasses
import io
import json
import os
import threading
import time
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from jaxtrain.errors import JaxtrainError
from jaxtrain.files import atomic_write_bytes, places_for

_LAYOUT: Final = 1  # of what is stored; what has another one is not used
_NAME: Final = "jaxtrain-files.npz"
DIGEST_BYTES: Final = 16
_KEEP_SECONDS: Final = 60


class Result(NamedTuple):
    """What came of reading a file.

    Attributes:
        error: why it cannot be decoded, in one line; None: it can be.
        digest: hash of its content, 16 bytes; empty if it cannot be decoded.
    """

    error: str | None
    digest: bytes


@dataclasses.dataclass(frozen=True)
class Seen:
    """A file as it was when it was read.

    Attributes:
        size: in bytes.
        modified_ns: when it had been modified, in nanoseconds since 1970.
        result: what came of it.
    """

    size: int
    modified_ns: int
    result: Result


class Known:
    """The files of a folder that were read before, kept in a file.

    It lies in the folder if that can be written, else below the user's cache folder. Any number of
    processes may use it at once: it is replaced as a whole, and what it lacks, or what is stale or
    damaged, is found again. Its methods may be called from threads.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path):
        self.root = root
        self._places = places_for(root, "files", _NAME)
        self._seen: dict[str, Seen] = {}
        for place in reversed(self._places):
            self._seen |= _load(place)
        self._new: dict[str, Seen] = {}
        self._kept = time.monotonic()
        self._lock = threading.Lock()

    def get(self, path: str, status: os.stat_result) -> Result | None:
        """What is known of a file; None if nothing is, or it has changed."""
        seen = self._seen.get(path)
        if seen is None or (seen.size, seen.modified_ns) != (status.st_size, status.st_mtime_ns):
            return None
        return seen.result

    def add(self, path: str, seen: Seen) -> None:
        """Adds what was found."""
        with self._lock:
            self._new[path] = seen

    def keep_now_and_then(self) -> None:
        """Stores what was added, once a minute."""
        if time.monotonic() - self._kept > _KEEP_SECONDS:
            self.keep()

    def keep(self) -> None:
        """Stores what was added, where that can be written."""
        self._kept = time.monotonic()
        with self._lock:
            new, self._new = self._new, {}
        if not new:
            return
        for place in self._places:
            content = _dump(_load(place) | new)
            with contextlib.suppress(OSError, JaxtrainError):  # without it, all is read again
                place.parent.mkdir(parents=True, exist_ok=True)
                atomic_write_bytes(place, content)
                return


def _dump(seen: dict[str, Seen]) -> bytes:
    files = list(seen.values())
    errors = {row: one.result.error for row, one in enumerate(files) if one.result.error}
    header = json.dumps({"layout": _LAYOUT, "errors": errors})
    digests = b"".join(one.result.digest.ljust(DIGEST_BYTES, b"\0") for one in files)
    content = io.BytesIO()
    np.savez(
        content,
        header=np.frombuffer(header.encode(), np.uint8),
        paths=np.frombuffer(b"\0".join(map(os.fsencode, seen)), np.uint8),
        sizes=np.array([one.size for one in files], np.int64),
        modified_ns=np.array([one.modified_ns for one in files], np.int64),
        digests=np.frombuffer(digests, np.uint8),
    )
    return content.getvalue()


def _load(place: Path) -> dict[str, Seen]:
    """What was stored; nothing if it is not there or not whole."""
    try:
        with np.load(io.BytesIO(place.read_bytes()), allow_pickle=False) as stored:
            header = json.loads(stored["header"].tobytes())
            if header["layout"] != _LAYOUT:
                return {}
            paths = [os.fsdecode(path) for path in stored["paths"].tobytes().split(b"\0")]
            sizes, modified = stored["sizes"].tolist(), stored["modified_ns"].tolist()
            digests = stored["digests"].tobytes()
        errors = {int(row): error for row, error in header["errors"].items()}
        results = [
            Result(errors[row], b"")
            if row in errors
            else Result(None, digests[row * DIGEST_BYTES : (row + 1) * DIGEST_BYTES])
            for row in range(len(paths))
        ]
        return {
            path: Seen(*rest) for path, *rest in zip(paths, sizes, modified, results, strict=True)
        }
    except Exception:  # any damage ends here; the archive has a checksum of each array
        return {}
