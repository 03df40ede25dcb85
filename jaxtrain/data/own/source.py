"""Sources of image files: what was found, made into splits and classes."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxtrain.config.schema import DataConfig
from jaxtrain.data.decode import rgb
from jaxtrain.data.local import data_path
from jaxtrain.data.own import cut
from jaxtrain.data.own.files import FileSplit
from jaxtrain.data.own.folder import find_images
from jaxtrain.data.own.found import Found, Listed, identity, normal
from jaxtrain.data.own.known import Known
from jaxtrain.data.own.parts import cut_note, no_split, parts_there
from jaxtrain.data.own.scan import look_at
from jaxtrain.data.own.table import read_table
from jaxtrain.data.split import LeftOut, Progress
from jaxtrain.errors import UsageError, some

_CHANNELS = 3


class FileSource:
    """Image files with labels, in splits.

    Where all are in the split `train`, a part of it becomes the split `val`, see `cut.val_rows`.
    Classes are those of `data.class_names`, else those of `data.train_split`, sorted by the code
    points of their names.

    Args:
        found: the files.
        config: the `data` section.
        progress: told how far the decoding of all files is, with `data.on_bad_file=skip`.

    Attributes:
        class_names: one name a class; None: labels are numbers.
        split_names: the splits that are there; `open` also takes some with + between them.
        notes: what a person should know, a line each.

    Raises:
        UsageError: there is no split `data.train_split` to tell the classes.
    """

    def __init__(self, found: Found, config: DataConfig, progress: Progress):
        self._config = config
        self._progress = progress
        self._root = found.root
        listed = [path for each in found.splits.values() for path in each.paths]
        self._known = Known(found.root, listed)
        self._origin = found.origin
        self._found_notes = found.notes
        self._splits = _with_val(found.splits, config.val_share)
        self.split_names = tuple(self._splits)
        self.notes: Sequence[str] = found.notes
        self.class_names: tuple[str, ...] | None = None
        if not found.numbered or _names_all(config.class_names, found.splits):
            named = map(normal, config.class_names or ())
            trained = tuple(named) or sorted(set(self._listed(config.train_split).labels))
            self.class_names = tuple(trained)
            self.notes = [*found.notes, *self._missing()]
        if set(self._splits) != set(found.splits):
            self.notes = [*self.notes, cut_note(config.val_share)]
        if self.class_names is not None and len(self.class_names) == 1:
            self.notes = [*self.notes, "there is only one class to tell from no other"]

    def open(self, name: str) -> FileSplit:
        """Opens a split, or several as one, as in `train+val`.

        Raises:
            UsageError: there is no such split, a label of it is of no class, or with
                `data.on_bad_file=skip` no file of it can be decoded.
        """
        listed = self._listed(name)
        labels = self._labels(name, listed)
        skips = self._config.on_bad_file == "skip"
        results = look_at(self._known, listed.paths, self._progress, decoded=skips)
        # One a row: a list may name a file twice.
        good = [row for row, result in enumerate(results) if result.error is None]
        bad = [
            LeftOut(str(self._root / path), result.error)
            for path, result in zip(listed.paths, results, strict=True)
            if result.error is not None
        ]
        first, why = next(iter(bad), ("", ""))
        if bad and not skips:
            raise UsageError(
                f"{len(bad):,} of the {len(results):,} files of split {name} cannot be read, first "
                f"{first}: {why}; put them back, or set data.on_bad_file=skip for a new run"
            )
        if not good:
            raise UsageError(
                f"none of the {len(results):,} files of split {name} can be decoded, first "
                f"{first}: {why}; mend them, or give others"
            )
        return FileSplit(
            name,
            self._root,
            [listed.paths[row] for row in good],
            labels[good],
            [results[row] for row in good],
            channels=self._config.channels or _CHANNELS,
            background=rgb(self._config.background),
            origin=self._origin,
            left_out=bad,
        )

    def scan(self, name: str) -> Iterator[tuple[str, str, str, str | None, bytes]]:
        """Decodes all files of a split.

        Yields:
            The split, the file's path, its label, why it cannot be decoded (None: it can be), and
            the hash of its content.
        """
        listed = self._splits[name]
        results = look_at(self._known, listed.paths, self._progress, decoded=True)
        for path, label, result in zip(listed.paths, listed.labels, results, strict=True):
            yield name, str(self._root / path), label, result.error, result.digest

    def _listed(self, name: str) -> Listed:
        """The files of splits with + between them."""
        parts = parts_there(name, self._splits)
        for part in parts:
            if part not in self._splits:
                notes = "".join(f" ({note})" for note in self._found_notes)
                raise no_split(
                    part,
                    {split: len(listed.paths) for split, listed in self._splits.items()},
                    place=f"{self._origin}{notes}",
                    what="images",
                    val_share=self._config.val_share,
                )
        if len(parts) == 1:
            return self._splits[parts[0]]
        listed = [self._splits[part] for part in parts]
        return Listed(
            [path for each in listed for path in each.paths],
            [label for each in listed for label in each.labels],
        )

    def _labels(self, name: str, listed: Listed) -> NDArray[np.int32]:
        if self.class_names is None:
            numbers = np.array(listed.labels, np.int64)
            largest = np.iinfo(np.int32).max
            bad = np.flatnonzero((numbers < 0) | (numbers > largest))
            if bad.size:
                number = numbers[bad[0]]
                limit = "start at 0" if number < 0 else f"end at {largest:,}"
                raise UsageError(
                    f"{self._origin}: the label {number} of {listed.paths[bad[0]]} is no class "
                    f"number, as class numbers {limit}; number the classes 0, 1, ..., or give "
                    "their names as labels"
                )
            return numbers.astype(np.int32)
        numbered = {label: number for number, label in enumerate(self.class_names)}
        try:
            return np.array([numbered[label] for label in listed.labels], np.int32)
        except KeyError as error:
            (unknown,) = error.args
            path = listed.paths[listed.labels.index(unknown)]
            raise UsageError(
                f"split {name} of {self._origin} has the class {unknown!r} ({path}), which is none "
                f"of the {len(self.class_names)} classes; remove it, or "
                + (
                    f"give split {self._config.train_split} images of it"
                    if self._config.class_names is None
                    else "add it to data.class_names of a new run"
                )
            ) from None

    def _missing(self) -> Iterator[str]:
        """The classes that a split has no images of, in words."""
        for name, listed in self._splits.items():
            there = set(listed.labels)
            missing = [each for each in self.class_names or () if each not in there]
            if missing:
                yield f"split {name} has no images of {some(missing, what=' classes')}"


def _with_val(splits: Mapping[str, Listed], share: float) -> Mapping[str, Listed]:
    """The splits; a lone `train` parted into that and `val`."""
    if set(splits) != {"train"}:
        return splits
    whole = splits["train"]
    numbered = {label: number for number, label in enumerate(dict.fromkeys(whole.labels))}
    labels = np.array([numbered[label] for label in whole.labels])
    is_val = cut.val_rows(map(identity, whole.paths), labels, share)

    def part(rows: NDArray[np.intp]) -> Listed:
        return Listed([whole.paths[row] for row in rows], [whole.labels[row] for row in rows])

    parts = {"train": part(np.flatnonzero(~is_val)), "val": part(np.flatnonzero(is_val))}
    return {name: listed for name, listed in parts.items() if listed.paths}


def _names_all(names: tuple[str, ...] | None, splits: Mapping[str, Listed]) -> bool:
    """Whether numbers are meant as names of classes, since `data.class_names` has them all."""
    known = set(map(normal, names or ()))
    return names is not None and all(known.issuperset(each.labels) for each in splits.values())


def folder_source(config: DataConfig, progress: Progress) -> FileSource:
    """`data.source=folder`.

    Raises:
        UsageError: there is no `data.path`, or see `find_images`.
    """
    path = _path(config, "the folder of the images")
    return FileSource(find_images(path), config, progress)


def csv_source(config: DataConfig, progress: Progress) -> FileSource:
    """`data.source=csv`.

    Raises:
        UsageError: there is no `data.path`, or see `read_table`.
    """
    path = _path(config, "a CSV or JSON lines file")
    return FileSource(read_table(config, path), config, progress)


def _path(config: DataConfig, what: str) -> Path:
    if config.path is None:
        raise UsageError(f"data.source={config.source} needs data.path, {what}")
    return data_path(config.path)
