"""The index of a data set: what is known of its record files without reading them again."""

import contextlib
import dataclasses
import io
import json
import threading
import urllib.parse
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxtrain.data.tfds.records import Scan, damaged, features, unreadable
from jaxtrain.data.threads import workers
from jaxtrain.errors import JaxtrainError, UsageError
from jaxtrain.files import atomic_write_bytes, places_for

_LAYOUT: Final = 1  # of the stored index; one of another layout is made again
_FIELDS: Final = ("sizes", "checksums", "labels")
_THREADS: Final = 8


class Shard(NamedTuple):
    """A record file, and how many examples it must hold."""

    path: Path
    examples: int


@dataclasses.dataclass(frozen=True, eq=False)
class ShardIndex:
    """What is known of a record file.

    Attributes:
        file_bytes: size of the file when it was read.
        modified_ns: when it had been modified, in nanoseconds since 1970.
        sizes: int64 `[records]`, bytes of each record.
        checksums: uint32 `[records]`, CRC-32C of each record.
        labels: int64 `[records]`.
    """

    file_bytes: int
    modified_ns: int
    sizes: NDArray[np.int64]
    checksums: NDArray[np.uint32]
    labels: NDArray[np.int64]

    def is_of(self, shard: Shard) -> bool:
        """Whether the file is still the one that was read, and holds what it must."""
        try:
            status = shard.path.stat()
        except OSError:
            return False
        found = (status.st_size, status.st_mtime_ns, shard.examples)
        return found == (self.file_bytes, self.modified_ns, len(self.sizes))


Indices = dict[str, ShardIndex]  # by the file's name


class Index:
    """The indices of a folder's record files, for one label feature, kept in a file.

    It lies beside the data if that can be written, else below the user's cache folder. Any number
    of processes may use it at once: it is replaced as a whole, and what it lacks, or what is stale
    or damaged, is made again.

    Args:
        folder: the data set's folder.
        label_key: the feature that is the label.
        scan: reads a file of the data set's format.
    """

    def __init__(self, folder: Path, label_key: str, scan: Scan):
        self._label_key = label_key
        self._scan = scan
        name = f"jaxtrain-index-{urllib.parse.quote(label_key, safe='')}.npz"
        self._files = places_for(folder, "tfds", name)
        self._lock = threading.Lock()

    def read(self, shards: Iterable[Shard]) -> Indices:
        """The index of each file; reads the whole file where that is not known.

        Raises:
            UsageError: a file is missing or damaged, does not hold as many examples as it must, or
                one of them has no label.
        """
        shards = list(dict.fromkeys(shards))
        with self._lock:  # A run opens its splits at once, and they may share files.
            stored = [_load(file) for file in self._files]
            known = {}
            for shard in shards:
                for indices in stored:
                    index = indices.get(shard.path.name)
                    if index is not None and index.is_of(shard):
                        known[shard.path.name] = index
            return known | self._make([each for each in shards if each.path.name not in known])

    def _make(self, shards: list[Shard]) -> Indices:
        """Reads whole files and stores what was found, also if one of them cannot be used."""
        made: Indices = {}
        try:
            with workers(_THREADS) as pool:
                for shard, index in zip(shards, pool.map(self._make_one, shards), strict=True):
                    made[shard.path.name] = index
        finally:
            if made:
                self._store(made)
        return made

    def _make_one(self, shard: Shard) -> ShardIndex:
        try:
            status = shard.path.stat()  # before it is read: a change from now on makes it stale
        except OSError as error:
            raise unreadable(shard.path, error) from error
        sizes, checksums, labels = [], [], []
        for record, (content, checksum) in enumerate(self._scan(shard.path)):
            sizes.append(len(content))
            checksums.append(checksum)
            labels.append(self._label(shard.path, record, content))
        if len(sizes) != shard.examples:
            raise UsageError(
                f"{shard.path} holds {len(sizes)} examples, but dataset_info.json beside it says "
                f"{shard.examples}; fetch or prepare the data set again"
            )
        return ShardIndex(
            status.st_size,
            status.st_mtime_ns,
            np.array(sizes, np.int64),
            np.array(checksums, np.uint32),
            np.array(labels, np.int64),
        )

    def _label(self, path: Path, record: int, content: bytes) -> int:
        try:
            values = features(content)[self._label_key].int64_list.value
        except ValueError as error:
            raise damaged(path, record, str(error)) from error
        if len(values) != 1:
            raise damaged(path, record, f"{len(values)} integers as {self._label_key!r}, not 1")
        return int(values[0])

    def _store(self, made: Indices) -> None:
        """Adds to what is stored, where that can be written."""
        for file in self._files:
            content = _dump(_load(file) | made)
            with contextlib.suppress(OSError, JaxtrainError):  # Without it, it is made every time.
                file.parent.mkdir(parents=True, exist_ok=True)
                atomic_write_bytes(file, content)
                return


def _dump(indices: Indices) -> bytes:
    """The content of an index file: the arrays of all files end to end, and which are whose."""
    files = [
        [name, index.file_bytes, index.modified_ns, len(index.sizes)]
        for name, index in indices.items()
    ]
    arrays: dict[str, Any] = {
        field: np.concatenate([getattr(index, field) for index in indices.values()])
        for field in _FIELDS
    }
    header = json.dumps({"layout": _LAYOUT, "files": files}).encode()
    content = io.BytesIO()
    np.savez(content, header=np.frombuffer(header, np.uint8), **arrays)
    return content.getvalue()


def _load(file: Path) -> Indices:
    """What an index file holds; nothing if it is not there or not whole."""
    try:
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as stored:
            header = json.loads(stored["header"].tobytes())
            fields = [stored[field] for field in _FIELDS]
        if header["layout"] != _LAYOUT:
            return {}
        indices, start = {}, 0
        for name, file_bytes, modified_ns, records in header["files"]:
            part = slice(start, start + records)
            indices[name] = ShardIndex(file_bytes, modified_ns, *(field[part] for field in fields))
            start += records
        return indices
    except Exception:  # Any damage ends here; the archive has a checksum of each array.
        return {}
