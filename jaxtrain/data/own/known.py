"""What is known of files from an earlier look at them."""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from jaxtrain.data.decode import DECODER
from jaxtrain.errors import JaxtrainError
from jaxtrain.files import atomic_write_bytes, places_for

_LAYOUT: Final = 2  # of what is stored; what has another one is not used
_NAME: Final = "jaxtrain-files.npz"
DIGEST_BYTES: Final = 16
_KEEP_SECONDS: Final = 60

# Of a file: its size in bytes, when it had been modified, and when it or its place had been
# changed, in nanoseconds since 1970.
State = tuple[int, int, int]


class Result(NamedTuple):
    """What came of reading a file.

    Attributes:
        error: why it cannot be read, or be decoded if that was tried, in one line; None: it can be.
        digest: hash of its content, 16 bytes; empty if it cannot be read.
        state: that of the file when it was read; zeros if it cannot be read.
    """

    error: str | None
    digest: bytes
    state: State = (0, 0, 0)


@dataclasses.dataclass(frozen=True)
class Seen:
    """A file as it was when it was read.

    Attributes:
        decoded: whether it was decoded too.
        result: what came of it.
    """

    decoded: bool
    result: Result


def state_of(status: os.stat_result) -> State:
    """The last of it changes even where a program sets the time of modification."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def digest_of(content: bytes) -> bytes:
    """`Result.digest`."""
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


class Known:
    """The files of a folder that were read before, kept in a file.

    It lies in the folder if that can be written, else below the user's cache folder; both are read.
    Any number of processes may use it at once: it is replaced as a whole, and what it lacks, or
    what is stale or damaged, is found again. Its methods may be called from threads.

    Args:
        root: the folder.
        there: files of the folder, from the root: when something is added, it is looked whether
            others are still there; what is kept of those that are gone is dropped.
    """

    def __init__(self, root: Path, there: Collection[str] = ()):
        self.root = root
        self._there = there
        self._places = places_for(root, "files", _NAME)
        # One a place: the best one's may know less of a file than another's, or be stale.
        self._stored = [_load(place) for place in self._places]
        self._found: dict[str, Seen] = {}
        self._new: dict[str, Seen] = {}
        self._kept = time.monotonic()
        self._lock = threading.Lock()
        self._storing = threading.Lock()

    def get(self, path: str, status: os.stat_result, *, decoded: bool) -> Result | None:
        """What is known of a file; None if it has changed, or was not decoded but is to be.

        What came of decoding is told where that is asked alone: an earlier look at a file must not
        change what a later one says.
        """
        for each in (self._found, *self._stored):
            seen = each.get(path)
            if seen is None or (decoded and not seen.decoded):
                continue
            if seen.result.state == state_of(status):
                return seen.result if decoded else seen.result._replace(error=None)
        return None

    def add(self, path: str, seen: Seen) -> None:
        """Adds what was found."""
        with self._lock:
            self._found[path] = self._new[path] = seen

    def keep_now_and_then(self) -> None:
        """Stores what was added, once a minute."""
        if time.monotonic() - self._kept > _KEEP_SECONDS:
            self.keep()

    def keep(self) -> None:
        """Stores what was added, where that can be written."""
        with self._storing:
            self._kept = time.monotonic()
            with self._lock:
                new, self._new = self._new, {}
            if not new:
                return
            there = frozenset(self._there)
            for place in self._places:
                stored = {
                    path: seen
                    for path, seen in _load(place).items()
                    if path in there or os.path.lexists(os.path.join(self.root, path))
                }
                content = _dump(stored | new)
                with contextlib.suppress(OSError, JaxtrainError):  # without it, all is read again
                    place.parent.mkdir(parents=True, exist_ok=True)
                    atomic_write_bytes(place, content)
                    return


def _dump(seen: dict[str, Seen]) -> bytes:
    files = list(seen.values())
    errors = {row: one.result.error for row, one in enumerate(files) if one.result.error}
    header = json.dumps({"layout": _LAYOUT, "decoder": DECODER, "errors": errors})
    digests = b"".join(one.result.digest for one in files)
    content = io.BytesIO()
    np.savez(
        content,
        header=np.frombuffer(header.encode(), np.uint8),
        paths=np.frombuffer(b"\0".join(map(os.fsencode, seen)), np.uint8),
        states=np.array([one.result.state for one in files], np.int64),
        decoded=np.array([one.decoded for one in files], bool),
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
            states = [tuple(state) for state in stored["states"].tolist()]
            # What another decoder found says nothing of this one.
            decoded = (stored["decoded"] & (header["decoder"] == DECODER)).tolist()
            digests = stored["digests"].tobytes()
        errors = {int(row): error for row, error in header["errors"].items()}
        seen = {}
        for row, path in enumerate(paths):
            digest = digests[row * DIGEST_BYTES : (row + 1) * DIGEST_BYTES]
            result = Result(errors.get(row) if decoded[row] else None, digest, states[row])
            seen[path] = Seen(decoded[row], result)
        return seen
    except Exception:  # any damage ends here; the archive has a checksum of each array
        return {}
