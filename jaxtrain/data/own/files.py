"""A split of image files."""

import contextlib
import functools
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxtrain.data.decode import PixelBox, decode, decode_part
from jaxtrain.data.listing import beginning_of
from jaxtrain.data.own.found import identity
from jaxtrain.data.own.known import Result, digest_of, state_of
from jaxtrain.data.split import Identity, LeftOut, RawSplit
from jaxtrain.errors import DataError


class _ChangedError(DataError):
    """A file does not hold what it held when it was looked at; the message names it."""


class FileSplit(RawSplit):
    """Images in files, of any size.

    What is read of a file is what it held when it was looked at: that is what the fingerprint and
    the identities stand for.

    Args:
        name: the split's name.
        root: the folder that paths count from.
        paths: the files.
        labels: int32 `[n]`, the class of each.
        results: what came of looking at each.
        channels: channels that they are decoded to: 1, 3 or 4.
        background: colour behind what is transparent.
        origin: where the labels come from, for messages.
        left_out: as of a `Split`.
    """

    def __init__(
        self,
        name: str,
        root: Path,
        paths: Sequence[str],
        labels: NDArray[np.int32],
        results: Sequence[Result],
        *,
        channels: int,
        background: tuple[int, int, int],
        origin: str,
        left_out: Sequence[LeftOut],
    ):
        self.name = name
        self.size = len(paths)
        self.labels = labels
        self.channels = channels
        self.image_shape = None
        self.origin = origin
        self.left_out = left_out
        self._root = str(root)
        self._paths = paths
        self._digests = [result.digest for result in results]
        self._states = np.array([result.state for result in results], np.int64)
        self._background = background

    def file_of(self, index: int) -> str:
        """Its path, as the root's is given."""
        return os.path.join(self._root, self._paths[index])

    def identities(self) -> Sequence[Identity]:
        """Path from the root; content of each file, and how it is decoded."""
        how = f" {self.channels} {self._background}".encode()
        versions = (digest + how for digest in self._digests)
        return list(map(Identity, map(identity, self._paths), versions))

    def decode(self, index: int, enough: tuple[int, int] | None = None) -> NDArray[np.uint8]:
        """Reads and decodes one image `[h, w, channels]`; see `RawSplit`."""
        with self._named(index) as path:
            content = self._content(index, path)
            return decode(content, self.channels, background=self._background, enough=enough)

    def decode_part(
        self,
        index: int,
        choose: Callable[[tuple[int, int]], PixelBox],
        enough: tuple[int, int] | None = None,
    ) -> NDArray[np.uint8]:
        """Reads one image and decodes a part of it; see `RawSplit`."""
        with self._named(index) as path:
            content = self._content(index, path)
            return decode_part(
                content, self.channels, choose, background=self._background, enough=enough
            )

    def _content(self, index: int, path: str) -> bytes:
        """All bytes of a file, those that its digest was made of.

        Raises:
            _ChangedError: they are not there any more.
            DataError: it cannot be read.
        """
        state = tuple(self._states[index].tolist())
        # Whoever writes to a file while it is read has changed its state by the end.
        content, status = beginning_of(path, state[0])
        if state_of(status) == state:
            return content
        if status.st_size == state[0] and digest_of(content) == self._digests[index]:
            return content  # it was but touched, or copied
        raise _ChangedError(
            f"{path} has changed since it was looked at; put it back, or start again (a training "
            "run with --fresh)"
        )

    @contextlib.contextmanager
    def _named(self, index: int) -> Iterator[str]:
        """Gives the path of a file, and names it in errors."""
        path = self.file_of(index)
        try:
            yield path
        except _ChangedError:
            raise
        except DataError as error:
            raise DataError(
                f"{path}: {error}; mend or remove it, or set data.on_bad_file=skip for a new run"
            ) from error

    @functools.cached_property
    def fingerprint(self) -> str:
        """8 hex digits of the examples in their order: content and label of each.

        Where the files lie and what they are called changes nothing but their order.
        """
        crc = zlib.crc32(f"{self.channels} {self._background}".encode())
        crc = zlib.crc32(b"".join(self._digests), crc)
        return f"{zlib.crc32(self.labels.astype('<i4').data, crc):08x}"
