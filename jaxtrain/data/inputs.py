"""What `jaxtrain predict` is given, found before anything runs: files, folders, globs, arrays."""

import collections
import functools
import glob
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Final

from numpy.typing import NDArray

from jaxtrain.data import ahead, crops
from jaxtrain.data.decode import SUFFIXES
from jaxtrain.data.examples import is_image
from jaxtrain.data.groups import Array, Files, Group, Wanted, idx_images, npy
from jaxtrain.data.listing import files_in, suffix_of
from jaxtrain.data.local import not_local
from jaxtrain.errors import UsageError
from jaxtrain.files.places import SCHEME

STDIN: Final = "-"
_NPY_MAGIC: Final = b"\x93NUMPY"
_GZIP_MAGIC: Final = b"\x1f\x8b"
_IDX_MAGICS: Final = tuple(bytes((0, 0, kind)) for kind in (8, 9, 11, 12, 13, 14))
_IMAGE_MAGICS: Final = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF")


class Inputs:
    """Images or features in the order given; read only by `batches`.

    Attributes:
        left_out: how many files in folders are no images by their names, by suffix.
    """

    def __init__(self, groups: Sequence[Group], left_out: Mapping[str, int]):
        self.left_out = left_out
        self._groups = groups

    def __len__(self) -> int:
        return sum(map(len, self._groups))

    def batches(
        self,
        size: int,
        image_shape: tuple[int, ...],
        eval_crop: float,
        background: tuple[int, int, int],
    ) -> Iterator[ahead.ImageBatch]:
        """The examples, decoded and brought to one shape as in evaluation, ahead of the caller.

        Args:
            size: examples of a batch; the last one may have fewer.
            image_shape: (height, width, channels) of every image, or (features,).
            eval_crop: share of the shorter side that the centre crop keeps.
            background: colour behind transparent images.

        Raises:
            UsageError: there are features where images are wanted, or images for features, or an
                array of other channels or of another number of features; at once.
        """
        for group in self._groups:
            group.check(image_shape)

        def example(group: Group, index: int) -> NDArray[Any]:
            if not is_image(image_shape):
                return group.read(index, Wanted(image_shape[-1], background, None))
            sides = image_shape[0], image_shape[1]
            enough = crops.enough_for_center(sides, eval_crop)
            wanted = Wanted(image_shape[2], background, enough)
            return crops.center(group.read(index, wanted), sides, eval_crop)

        examples = (
            (group.name(index), functools.partial(example, group, index))
            for group in self._groups
            for index in range(len(group))
        )
        return ahead.read_ahead(examples, size, image_shape)


def list_inputs(words: Iterable[str], stdin: BinaryIO | None) -> Inputs:
    """Finds the images that words name.

    A word is a path, or else a pattern with `*`, `?`, `[...]` and, for folders at any depth, `**`;
    what matches it comes sorted. An image file is told from other formats by its content, when it
    is read. Of a folder it is the files whose names end as images' do, at any depth, sorted,
    without hidden ones. Of a NumPy or IDX file it is its rows. `-` stands for the paths in stdin,
    one a line, or with a NUL after each; those may be missing, which is told when they are read.

    Args:
        words: the words; any file names, as `os.fsdecode` gives them.
        stdin: read to its end for `-`; None: closed.

    Raises:
        UsageError: a word names nothing, no local file, a folder without images, or an array that
            is damaged or holds no images; or there are no images at all.
    """
    listing = _Listing()
    words = list(words)
    if words.count(STDIN) > 1:
        raise UsageError("- is given twice, but stdin can be read only once; give it once")
    for word in words:
        if word == STDIN:
            for path in _paths_in(stdin):
                listing.add(path, may_be_missing=True)
        elif glob.has_magic(word) and not os.path.lexists(word):
            for path in _matches(word):
                listing.add(path, may_be_missing=True)
        else:
            listing.add(word)
    inputs = Inputs(listing.groups, listing.left_out)
    if not len(inputs):
        raise UsageError("there are no images; give the path of a file, a folder or an array")
    return inputs


class _Listing:
    """Groups of images, in the order in which paths were added."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.left_out: collections.Counter[str] = collections.Counter()
        # Batches that are read ahead reach over the ends of files.
        self._open = functools.lru_cache(maxsize=4)(lambda kind, path: kind(path))

    def add(self, path: str, *, may_be_missing: bool = False) -> None:
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            if SCHEME.match(path) or not may_be_missing:
                raise _not_there(path, f"cannot be read: {error.strerror}") from error
            self._files().paths.append(path)
            return
        if stat.S_ISDIR(mode):
            self._add_folder(path)
        elif not stat.S_ISREG(mode):
            raise UsageError(f"{path} is neither a file nor a folder; copy it into a file")
        elif suffix_of(path) in SUFFIXES:  # without a look into it: there may be very many
            self._files().paths.append(path)
        else:
            self._add_file(path)

    def _files(self) -> Files:
        """The group that files are added to."""
        if self.groups and isinstance(self.groups[-1], Files):
            return self.groups[-1]
        files = Files()
        self.groups.append(files)
        return files

    def _add_file(self, path: str) -> None:
        """A file whose name does not tell what it is."""
        try:
            with open(path, "rb") as file:
                magic = file.read(len(_NPY_MAGIC))
        except OSError:  # told when it is read
            magic = b""
        if magic == _NPY_MAGIC or suffix_of(path) in (".npy", ".npz"):
            self.groups.append(Array(path, functools.partial(self._open, npy, path)))
        elif magic[:2] == _GZIP_MAGIC or magic[:3] in _IDX_MAGICS:
            self.groups.append(Array(path, functools.partial(self._open, idx_images, path)))
        else:
            self._files().paths.append(path)

    def _add_folder(self, folder: str) -> None:
        left_out: collections.Counter[str] = collections.Counter()
        found = []
        for path in files_in(folder):
            suffix = suffix_of(path)
            if suffix in SUFFIXES:
                found.append(path)
            else:
                left_out[suffix or "without suffix"] += 1
        if not found:
            others = ", ".join(f"{count} {suffix}" for suffix, count in left_out.most_common(8))
            raise UsageError(
                f"{folder} holds no images ({' '.join(sorted(SUFFIXES))}); it holds "
                + (others or "nothing that is not hidden")
            )
        self._files().paths += sorted(found)
        self.left_out += left_out


def _not_there(word: str, said: str) -> UsageError:
    if SCHEME.match(word):
        return not_local(word)
    return UsageError(
        f"{word or repr(word)} {said} (it counts from the current folder, {os.getcwd()})"
    )


def _matches(pattern: str) -> list[str]:
    """What a pattern stands for, sorted; `**` goes into folders, so it does not stand for them."""
    matches = sorted(glob.glob(pattern, recursive=True))
    if "**" in pattern:
        matches = [path for path in matches if not os.path.isdir(path)]
    if not matches:
        raise _not_there(pattern, "matches no file")
    return matches


def _paths_in(stdin: BinaryIO | None) -> list[str]:
    try:
        content = b"" if stdin is None else stdin.read()
    except OSError as error:
        raise UsageError(f"the list on stdin cannot be read: {error.strerror}") from error
    if content.startswith(_IMAGE_MAGICS):
        raise UsageError("stdin holds an image, not a list of paths; name its file instead of -")
    if b"\0" in content:
        lines = content.split(b"\0")
    else:
        lines = [line.removesuffix(b"\r") for line in content.split(b"\n")]
    paths = [os.fsdecode(line) for line in lines if line]
    if not paths:
        raise UsageError("- is given, but stdin holds no paths; write one a line")
    return paths
