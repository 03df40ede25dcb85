"""`data.source=arrays`."""

import threading
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxtrain.config.schema import DataConfig
from jaxtrain.data.arrays.files import open_arrays
from jaxtrain.data.arrays.inputs import check_inputs
from jaxtrain.data.arrays.joined import Joined
from jaxtrain.data.arrays.labels import Labels, parse_class_names, parse_labels
from jaxtrain.data.arrays.names import by_role
from jaxtrain.data.arrays.rounding import check_rounding
from jaxtrain.data.examples import is_image, shape_text
from jaxtrain.data.local import data_path
from jaxtrain.data.own import cut
from jaxtrain.data.own.found import normal
from jaxtrain.data.own.parts import cut_note, no_split, parts_of, parts_there
from jaxtrain.data.split import ArraySplit, Split, Subset
from jaxtrain.errors import UsageError, some

_CUT: Final = ("train", "val")


class ArraysSource:
    """Images or features with labels, in arrays whose names say what they are (`names.PARTS`).

    Where there is one pair of them, of no split or of `train`, a part of it becomes the split
    `val`, see `cut.val_rows`; a row's id is its number.

    Labels are numbers of classes, or names. Names are numbered in the order of
    `data.class_names`, else of an array of class names, else sorted by their code points, as they
    are in `data.train_split`. Where labels are numbers and an array names them, they are found in
    `data.class_names` by their names, unless that has none of them. Where no array does and
    `data.class_names` has every label of every split as text, labels are names as well.

    Args:
        config: the `data` section.

    Attributes:
        class_names: one name a class; None: labels are numbers, which nothing names.
        split_names: the splits that are there; `open` also takes some with + between them.
        notes: what a person should know, a line each.

    Raises:
        UsageError: `data.path` is missing, cannot be read or holds no arrays with fitting names,
            or the labels of `data.train_split` are none.
    """

    def __init__(self, config: DataConfig):
        if config.path is None:
            raise UsageError(
                "data.source=arrays needs data.path, an .npz file or a folder of .npy files"
            )
        self._config = config
        given = config.class_names
        self._given = None if given is None else tuple(map(normal, given))
        self._files = open_arrays(data_path(config.path))
        self._place = str(self._files.path)
        named = by_role(self._files.names, self._place)
        self._pairs = named.pairs
        self._labels: dict[str, Labels] = {}
        self._inputs: dict[str, NDArray[Any]] = {}
        # Splits are opened at once, also the two parts of one pair.
        self._locks = {split: threading.Lock() for split in self._pairs}
        self.notes: Sequence[str] = [f"not used: {', '.join(named.unused)}"] if named.unused else []
        self._own_names = None
        if named.class_names is not None:
            array = self._files.read(named.class_names)
            self._own_names = parse_class_names(array, self._files.where(named.class_names))
        self._is_val = self._cut() if set(self._pairs) == {"train"} else None
        if self._is_val is not None:
            self.notes = [*self.notes, cut_note(config.val_share)]
        self.split_names: tuple[str, ...] = tuple(self._pairs if self._is_val is None else _CUT)
        self._take_names()
        self.class_names = self._class_names()

    def open(self, name: str) -> Split:
        """Opens a split, or several as one, as in `train+val`.

        Raises:
            UsageError: there is no such split, its arrays are damaged or none of images or
                features, they are not as many as their labels, or a label is of no class; or it
                is `data.train_split`, and float32 is too coarse for a feature of it.
        """
        split = self._open(name)
        # Of few rows of other data, the deviation does not say what the model tells apart.
        if name == self._config.train_split and not is_image(split.image_shape):
            trained = self._trained()
            where = " and ".join(self._files.where(self._pairs[pair].inputs) for pair in trained)
            check_rounding([self._inputs[pair] for pair in trained], where)
        return split

    def _open(self, name: str) -> Split:
        parts = self._parts(name)
        if self._is_val is not None:
            whole = self._whole("train", name)
            if len(parts) > 1:
                return whole
            return Subset(name, whole, np.flatnonzero(self._is_val == (parts == ["val"])))
        if len(parts) == 1:
            return self._whole(parts[0], name)
        splits = [self._whole(part, part) for part in parts]
        shapes = {split.image_shape: split for split in splits}
        if len(shapes) > 1:
            said = " but ".join(f"{s.name} {shape_text(shape)}" for shape, s in shapes.items())
            raise UsageError(f"{name} of {self._place} are not alike: {said}; choose one of them")
        return Joined(name, splits)

    def _parts(self, name: str) -> list[str]:
        """The splits of a text with + between them."""
        parts = parts_there(name, self.split_names)
        for part in parts:
            if part not in self.split_names:
                raise no_split(
                    part,
                    self._sizes(),
                    place=self._place,
                    what="examples",
                    val_share=self._config.val_share,
                )
        return parts

    def _sizes(self) -> dict[str, int]:
        """How many labels each split has."""
        if self._is_val is not None:
            return {name: int(np.sum(self._is_val == (name == "val"))) for name in _CUT}
        return {split: len(self._parsed(split).values) for split in self._pairs}

    def _whole(self, split: str, name: str) -> ArraySplit:
        """All examples of a pair of arrays."""
        pair = self._pairs[split]
        where = self._files.where(pair.inputs)
        with self._locks[split]:
            if split not in self._inputs:
                self._inputs[split] = check_inputs(self._files.read(pair.inputs), where)
        inputs, labels = self._inputs[split], self._numbers(split)
        if len(inputs) != len(labels):
            raise UsageError(
                f"{where} holds {len(inputs)} examples, but {pair.labels} {len(labels)} labels; "
                "they must be as many"
            )
        return ArraySplit(name, inputs, labels, origin=self._files.where(pair.labels))

    def _parsed(self, split: str) -> Labels:
        if split not in self._labels:
            name = self._pairs[split].labels
            self._labels[split] = parse_labels(self._files.read(name), self._files.where(name))
        return self._labels[split]

    def _cut(self) -> NDArray[np.bool_] | None:
        """Which rows of the one pair are for validation; None if none are."""
        _, classes = np.unique(self._parsed("train").values, return_inverse=True)
        ids = (b"%d" % row for row in range(len(classes)))
        is_val = cut.val_rows(ids, classes, self._config.val_share)
        return is_val if is_val.any() else None

    def _take_names(self) -> None:
        """Takes numbers for names of classes if `data.class_names` has them all."""
        if self._given is None or self._own_names is not None:
            return
        labels = {split: self._parsed(split) for split in self._pairs}
        if any(each.columns is not None for each in labels.values()):
            return  # a column's place is no label that anybody wrote
        known = set(self._given)
        there = (np.unique(each.values).tolist() for each in labels.values())
        if all(known.issuperset(map(str, values)) for values in there):
            texts = {split: each.values.astype(str) for split, each in labels.items()}
            self._labels = {split: Labels(values) for split, values in texts.items()}

    def _class_names(self) -> tuple[str, ...] | None:
        """As the class's docstring says."""
        given, own = self._given, self._own_names
        labels = self._parsed(self._trained()[0])
        if labels.are_names:
            return given or own or self._sorted_names()
        if own is None:
            return None if labels.columns is None else tuple(map(str, range(labels.columns)))
        if given is None or set(own).isdisjoint(given):
            return own
        if unknown := [name for name in own if name not in given]:
            raise self._unknown(unknown[0], "its class names have")
        return given

    def _trained(self) -> list[str]:
        """The pairs that are trained on, or all if this is other data."""
        parts = parts_of(self._config.train_split)
        whole = self._is_val is not None or not set(parts) <= set(self._pairs)
        return list(self._pairs) if whole else parts

    def _sorted_names(self) -> tuple[str, ...]:
        values = [self._parsed(name).values for name in self._trained()]
        parts = parts_of(self._config.train_split)
        if self._is_val is not None and parts in (["train"], ["val"]):
            (whole,) = values
            values = [whole[self._is_val == (parts == ["val"])]]
        return tuple(map(str, np.unique(np.concatenate(values))))

    def _numbers(self, split: str) -> NDArray[np.int32]:
        """The labels of a pair as numbers of classes."""
        labels, other = self._parsed(split), self._trained()[0]
        if labels.are_names != self._parsed(other).are_names:
            raise UsageError(
                f"{self._place} has names as labels of one of the splits {split} and {other}, but "
                "numbers as those of the other; give both names, or both numbers"
            )
        names = self.class_names or ()
        numbered = {name: number for number, name in enumerate(names)}
        if labels.are_names:
            there, inverse = np.unique(labels.values, return_inverse=True)
            if unknown := [name for name in there.tolist() if name not in numbered]:
                raise self._unknown(unknown[0], f"split {split} has")
            return np.array([numbered[name] for name in there.tolist()], np.int32)[inverse]
        own = self._own_names
        where = self._files.where(self._pairs[split].labels)
        if (below := np.flatnonzero(labels.values < 0)).size:
            raise UsageError(
                f"{where} holds {labels.values[below[0]]} at index {below[0]}, as {below.size:,} "
                f"of its {len(labels.values):,} labels are below 0, but class numbers start at 0; "
                "number the classes, as by np.unique(y, return_inverse=True)"
            )
        if own is None or own == names:
            return labels.values.astype(np.int32, copy=False)
        bad = np.flatnonzero(labels.values >= len(own))
        if bad.size:
            raise UsageError(
                f"{where} holds {labels.values[bad[0]]} at index {bad[0]}, but there are "
                f"{len(own)} class names; mend the label"
            )
        return np.array([numbered[name] for name in own], np.int32)[labels.values]

    def _unknown(self, name: str, who: str) -> UsageError:
        if self._given is not None:
            fix = "add it to data.class_names of a new run"
        elif self._own_names is not None:
            fix = "add it to the array of class names"
        else:
            fix = f"give split {self._config.train_split} examples of it"
        return UsageError(
            f"{self._place}: {who} the class {name!r}, which is none of the classes "
            f"{some(self._given or self.class_names or ())}; remove it, or {fix}"
        )
