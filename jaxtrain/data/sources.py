"""Where examples come from: one source a kind of data, looked up in `SOURCES`."""

import collections
import dataclasses
import operator
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from jaxtrain.config.choices import unknown
from jaxtrain.config.schema import DataConfig
from jaxtrain.data import idx
from jaxtrain.data.arrays import ArraysSource
from jaxtrain.data.local import data_path
from jaxtrain.data.own import csv_source, folder_source
from jaxtrain.data.split import ArraySplit, Progress, RawSplit, Split
from jaxtrain.data.synthetic import Synthetic
from jaxtrain.errors import UsageError, some


class Source(Protocol):
    """Opens splits by name.

    Attributes:
        class_names: one name a class if the source knows them.
        split_names: the splits that are there.
        notes: what a person should know of what was found, a line each.
    """

    class_names: tuple[str, ...] | None
    split_names: tuple[str, ...]
    notes: Sequence[str]

    def open(self, name: str) -> Split | RawSplit:
        """Opens one split; `UsageError` if it is not there or damaged. Called from threads."""
        ...


# Which sources read a key; every source reads those that are not here. Synthetic images stand in
# for any data, so a config's keys for its own data do not matter there.
_READERS: Final = {
    "path": ("folder", "csv", "arrays", "idx", "tfds", "synthetic"),
    "path_column": ("csv", "synthetic"),
    "label_column": ("csv", "synthetic"),
    "split_column": ("csv", "synthetic"),
    "val_share": ("folder", "csv", "arrays", "synthetic"),
    "channels": ("folder", "csv", "synthetic"),
    "background": ("folder", "csv", "synthetic"),
    "on_bad_file": ("folder", "csv", "synthetic"),
    "standardize": ("arrays", "synthetic"),
    "name": ("tfds", "synthetic"),
    "version": ("tfds", "synthetic"),
    "image_key": ("tfds", "synthetic"),
    "label_key": ("tfds", "synthetic"),
    "download": ("tfds", "synthetic"),
    "synthetic.image_shape": ("synthetic",),
    "synthetic.examples": ("synthetic",),
    "synthetic.eval_examples": ("synthetic",),
}
_OF_FILES: Final = ("val_share", "channels", "background", "on_bad_file", "standardize")


def open_source(config: DataConfig, progress: Progress) -> Source:
    """The source that the config names.

    Args:
        config: the `data` section.
        progress: told how far it is where opening a split takes long.

    Raises:
        UsageError: there is none of that name, it does not read a key that is set, or it cannot
            be opened.
    """
    if config.source not in SOURCES:
        raise unknown("data.source", config.source, SOURCES)
    for name, readers in _READERS.items():
        if _is_unread(config, name):
            value, default = _value(config, name), _value(DataConfig(), name)
            text = ",".join(map(str, default)) if isinstance(default, tuple) else default
            raise UsageError(
                f"data.{name}={value!r} is set, but data.source={config.source} does not read it "
                f"(read by {', '.join(readers)}); unset it with --config.data.{name}={text}"
            )
    return SOURCES[config.source](config, progress)


def for_other_data(config: DataConfig) -> DataConfig:
    """A run's config for data from another source: what that does not read of files is dropped."""
    unread = [name for name in _OF_FILES if _is_unread(config, name)]
    return dataclasses.replace(config, **{name: _value(DataConfig(), name) for name in unread})


def _is_unread(config: DataConfig, name: str) -> bool:
    is_set: bool = _value(config, name) != _value(DataConfig(), name)
    return is_set and config.source not in _READERS[name]


def _value(config: DataConfig, name: str) -> Any:
    return operator.attrgetter(name)(config)


_IDX_NAME: Final = re.compile(
    r"(?:(?P<prefix>.+)-)?(?P<split>train|test|t10k)-(?P<kind>images|labels)[-.]idx\d-\w+"
    r"(?P<gzip>\.gz)?"
)
_IDX_SPLITS: Final = {"train": "train", "test": "test", "t10k": "test"}


class IdxFolder:
    """A folder of IDX files named as MNIST's, Fashion-MNIST's, KMNIST's or EMNIST's.

    Names are `train-images-idx3-ubyte` and so on: `train`, and `test` or `t10k`; `images` and
    `labels`; a dot for the dash before `idx`; `.gz` after it or not (the plain file is taken if
    both are there); and EMNIST's prefix (`emnist-letters-train-...`), one a folder.

    Args:
        folder: where the files are.
        class_names: one name a class if known.

    Raises:
        UsageError: no such folder, or it holds several data sets or one file in two forms.
    """

    notes: Sequence[str] = ()

    def __init__(self, folder: Path, class_names: tuple[str, ...] | None = None):
        self.class_names = class_names
        self._folder = folder
        try:
            self._listing = sorted(entry.name for entry in folder.iterdir())
        except OSError as error:
            raise UsageError(
                f"data.path={folder} cannot be read: {error.strerror or error} (it counts from "
                f"the current folder, {Path.cwd()})"
            ) from error
        found: dict[tuple[str, str], list[re.Match[str]]] = collections.defaultdict(list)
        for name in self._listing:
            if match := _IDX_NAME.fullmatch(name):
                found[_IDX_SPLITS[match["split"]], match["kind"]].append(match)
        prefixes = sorted({match["prefix"] or "" for group in found.values() for match in group})
        if len(prefixes) > 1:
            names = ", ".join(prefix or "(no prefix)" for prefix in prefixes)
            raise UsageError(
                f"{folder} holds {len(prefixes)} data sets ({names}); "
                "put the files of one into a folder of its own"
            )
        self._prefix = f"{prefixes[0]}-" if prefixes and prefixes[0] else ""
        self._files = {key: folder / self._choose(group) for key, group in found.items()}
        self.split_names = tuple(sorted({split for split, _ in found}, reverse=True))

    def open(self, name: str) -> Split:
        """Reads both files of the split `train`, `test` or `t10k` (as `test`)."""
        if name not in _IDX_SPLITS:
            there = ", ".join(self.split_names) or "none"
            raise UsageError(f"there is no split {name!r} in {self._folder}; its splits: {there}")
        split = _IDX_SPLITS[name]
        images_file, labels_file = self._file(split, "images"), self._file(split, "labels")
        images, labels = idx.read_images(images_file), idx.read_labels(labels_file)
        if len(images) != len(labels):
            raise UsageError(
                f"{images_file} holds {len(images)} images but {labels_file.name} "
                f"{len(labels)} labels; they must be as many"
            )
        return ArraySplit(split, images, labels, origin=str(labels_file))

    def _choose(self, group: list[re.Match[str]]) -> str:
        """The one file among the names of one part of a split."""
        plain = [match.string for match in group if not match["gzip"]]
        names = plain or [match.string for match in group]
        if len(names) > 1:
            raise UsageError(
                f"{self._folder} holds the same part {len(names)} times ({', '.join(names)}); "
                "keep one"
            )
        return names[0]

    def _file(self, split: str, kind: str) -> Path:
        if path := self._files.get((split, kind)):
            return path
        name = "t10k" if split == "test" else split
        dimensions = {"images": 3, "labels": 1}[kind]
        expected = f"{self._prefix}{name}-{kind}-idx{dimensions}-ubyte"
        raise UsageError(
            f"{self._folder} has no {split} {kind}: expected {expected} or {expected}.gz, "
            f"found {some(self._listing) or 'nothing'}"
        )


def _mnist(config: DataConfig, progress: Progress) -> IdxFolder:
    return IdxFolder(Path(__file__).parent / "mnist", tuple("0123456789"))


def _idx(config: DataConfig, progress: Progress) -> IdxFolder:
    if config.path is None:
        raise UsageError("data.source=idx needs data.path, the folder of its IDX files")
    return IdxFolder(data_path(config.path))


def _tfds(config: DataConfig, progress: Progress) -> Source:
    from jaxtrain.data.tfds import TfdsSource  # noqa: PLC0415 - its import takes half a second

    return TfdsSource(config)


def _arrays(config: DataConfig, progress: Progress) -> ArraysSource:
    return ArraysSource(config)


def _synthetic(config: DataConfig, progress: Progress) -> Synthetic:
    return Synthetic(config)


SOURCES: Final[dict[str, Callable[[DataConfig, Progress], Source]]] = {
    "mnist": _mnist,
    "folder": folder_source,
    "csv": csv_source,
    "arrays": _arrays,
    "idx": _idx,
    "tfds": _tfds,
    "synthetic": _synthetic,
}

# Whose examples are image files.
FILE_SOURCES: Final = frozenset({"folder", "csv"})
# Data of one's own: labels may be names, which are found in `data.class_names`.
OWN_SOURCES: Final = FILE_SOURCES | {"arrays"}
