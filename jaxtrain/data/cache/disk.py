"""Decoded images on disk, shared by the processes of a machine and kept for later runs."""

import collections
import contextlib
import errno
import hashlib
import math
import os
import random
import shutil
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxtrain import __version__
from jaxtrain.data import decode
from jaxtrain.data.cache import chunk
from jaxtrain.data.cache.clean import clean
from jaxtrain.data.cache.memory import Make
from jaxtrain.data.cache.place import existing, no_room, unusable
from jaxtrain.data.descriptors import open_files
from jaxtrain.data.split import Identity, Progress, RawSplit
from jaxtrain.data.threads import workers

# Images of a chunk, about: few enough that a new file costs little, and that all threads have work.
_CHUNK: Final = 128
_SAMPLE: Final = 32  # images whose size stands for that of all
_SPARE_BYTES: Final = 2**26


class _Group(NamedTuple):
    """The examples of a chunk.

    Attributes:
        number: of the chunk, from 0.
        path: its file, whose name changes with any of them.
        indices: in the order in which they lie there.
    """

    number: int
    path: Path
    indices: list[int]


class Disk:
    """Images in files, each with those of some examples, which a hash of their names chooses.

    The name of a file is a digest of what it holds: which examples, in which state, made in which
    way. So a changed example leads to another file, a new one changes one file, and processes that
    want the same images use the same files, whatever else they read. Files that are not there are
    made by `prepare`, by as many processes at once as want them, each in an order of its own.

    Args:
        folder: where the files are.
        make: makes the image of an example.
        raw: the examples.
        how: what `make` does to an example; with the version of what it needs but a decoder.
        shape: (height, width, channels) of every image; None: they vary.
    """

    def __init__(
        self,
        folder: Path,
        make: Make,
        raw: RawSplit,
        *,
        how: str,
        shape: tuple[int, int, int] | None,
    ):
        self._folder = folder
        self._make = make
        self._raw = raw
        # Another version may round in another way.
        self._how = f"{chunk.LAYOUT}; {how}; jaxtrain {__version__}, {decode.DECODER}"
        self._shape = shape
        # What `check_room` has found, for which examples; only that, as it says where they are.
        self._planned: tuple[bytes | None, list[_Group]] | None = None
        self._chunks: list[chunk.Chunk | None] = []
        # Where each image is; nowhere until it is prepared.
        self._chunk_of = np.empty(0, np.int32)
        self._row_of = np.empty(0, np.int32)

    def get(self, index: int) -> NDArray[np.uint8]:
        """One image `[h, w, C]`, not writable; made anew where nothing has been prepared."""
        image = self.find(index)
        return self._make(index) if image is None else image

    def find(self, index: int) -> NDArray[np.uint8] | None:
        """One image, if it has been prepared; not writable."""
        number = self._chunk_of[index] if self._chunk_of.size else -1
        whole = self._chunks[number] if number >= 0 else None
        return None if whole is None else whole.get(self._row_of[index])

    def check_room(self, rows: NDArray[np.int64] | None, besides: int) -> int:
        """Looks whether there is room for the files that `prepare` makes, and makes none.

        Files that are there are opened already: nobody removes what is in use.

        Args:
            rows: indices of the examples; None: all.
            besides: bytes that are going to be written before.

        Returns:
            Bytes of those files, about.

        Raises:
            UsageError: there is no room for them, or too many files are open.
            DataError: an image cannot be made; few are tried, if they vary in size.
        """
        groups = self._groups(rows)
        self._planned = _key(rows), groups
        try:
            missing = [group for group in groups if not self._open(group)]
            return self._room_for(missing, existing(self._folder), besides) if missing else 0
        except OSError as error:
            raise unusable(self._folder, error) from error

    def prepare(self, progress: Progress, rows: NDArray[np.int64] | None) -> None:
        """Opens the files of some examples, and makes those that are not there.

        Args:
            progress: told how many images are there, of how many.
            rows: indices of the examples; None: all.

        Raises:
            UsageError: there is no room for them, the folder cannot be written, or too many files
                are open.
            DataError: an image cannot be made.
        """
        planned, self._planned = self._planned, None
        if planned is not None and planned[0] == _key(rows):
            groups = planned[1]
        else:
            groups = self._groups(rows)
        total = sum(len(group.indices) for group in groups)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            missing = [group for group in groups if not self._open(group)]
            clean(self._folder)  # after all that the run uses is open, of its other split, too
            if missing:
                self._room_for(missing, self._folder, 0)
                self._build(missing, progress, total)
        except OSError as error:
            raise unusable(self._folder, error) from error

    def _groups(self, rows: NDArray[np.int64] | None) -> list[_Group]:
        identities = self._raw.identities()
        indices = range(len(identities)) if rows is None else np.unique(rows).tolist()
        wanted = math.ceil(math.log2(max(len(indices) / _CHUNK, 1)))
        # Each stays open. A power of 2, so that a new image seldom changes which are together.
        count = 2 ** min(wanted, open_files().bit_length() - 1)
        parts: dict[int, list[tuple[Identity, int]]] = collections.defaultdict(list)
        for index in indices:
            key = hashlib.blake2b(identities[index].name, digest_size=8).digest()
            parts[int.from_bytes(key) * count >> 64].append((identities[index], index))
        self._chunk_of = np.full(len(identities), -1, np.int32)
        self._row_of = np.zeros(len(identities), np.int32)
        groups = []
        for number, members in enumerate(parts.values()):
            members.sort()
            own = [index for _, index in members]
            self._chunk_of[own] = number
            self._row_of[own] = np.arange(len(own))
            digest = hashlib.sha256(self._how.encode())
            for identity, _ in members:
                for text in identity:
                    digest.update(len(text).to_bytes(8) + text)
            path = self._folder / f"{digest.hexdigest()[:32]}{chunk.SUFFIX}"
            groups.append(_Group(number, path, own))
        self._chunks = [None] * len(groups)
        return groups

    def _open(self, group: _Group) -> bool:
        """Whether the file of a group is there; its images are used from now on."""
        if self._chunks[group.number] is not None:
            return True
        whole = chunk.opened(group.path, len(group.indices))
        if whole is None:
            return False
        with contextlib.suppress(OSError):  # of another user
            os.utime(group.path)  # it is in use
        self._chunks[group.number] = whole
        return True

    def _build(self, missing: list[_Group], progress: Progress, total: int) -> None:
        missing = list(missing)
        random.Random(os.urandom(8)).shuffle(missing)  # other processes have another order
        done = total - sum(len(group.indices) for group in missing)
        lock, stopped = threading.Lock(), threading.Event()

        def images(group: _Group) -> Iterator[NDArray[np.uint8]]:
            nonlocal done
            for index in group.indices:
                if stopped.is_set():
                    raise futures.CancelledError
                yield self._make(index)
                with lock:
                    done += 1
                    progress("cache", done, total)

        def build(group: _Group) -> None:
            nonlocal done
            if self._open(group):  # another process has made it by now
                with lock:
                    done += len(group.indices)
                return
            chunk.write(group.path, images(group))
            if not self._open(group):
                raise OSError(errno.EIO, "what was written cannot be read", str(group.path))

        with workers() as pool:
            try:
                for _ in pool.map(build, missing):
                    pass
            finally:
                stopped.set()

    def _room_for(self, missing: list[_Group], place: Path, besides: int) -> int:
        """Bytes of the images of some groups, if a disk has as many besides others."""
        indices = [index for group in missing for index in group.indices]
        if self._shape is None:
            sample = indices[:: math.ceil(len(indices) / _SAMPLE)]
            nbytes = sum(self._make(index).nbytes for index in sample) / len(sample)
        else:
            nbytes = math.prod(self._shape)
        needed = math.ceil(nbytes * len(indices))
        free = max(0, shutil.disk_usage(place).free - besides)
        if needed + _SPARE_BYTES > free:
            raise no_room(
                f"the {len(indices):,} decoded images of split {self._raw.name} need about "
                f"{needed / 1e9:.3g} GB, but {free / 1e9:.3g} GB are free in {self._folder}"
            )
        return needed


def _key(rows: NDArray[np.int64] | None) -> bytes | None:
    return None if rows is None else rows.tobytes()
