"""The data that a config names: splits, holdout and classes, checked before anything runs."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from concurrent import futures
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxtrain.config.schema import DataConfig
from jaxtrain.data import sizes
from jaxtrain.data.examples import is_image, shape_text
from jaxtrain.data.own.parts import parts_of
from jaxtrain.data.sampler import holdout_rows
from jaxtrain.data.sources import OWN_SOURCES, Source, for_other_data, open_source
from jaxtrain.data.split import Progress, RawSplit, Split, Subset, silent
from jaxtrain.errors import UsageError

_HOLDOUT: Final = "holdout"


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """What a run trains on and is evaluated on.

    Attributes:
        train: the training examples, without the holdout.
        eval: the holdout if `data.holdout` is set, else as `data.eval_split` says.
        class_names: one name a class, in label order.
        notes: what a person should know of what was found, a line each.
    """

    train: Split
    eval: Split
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def left_out(self) -> dict[str, Mapping[str, str]]:
        """Why files that cannot be decoded are no examples, in one line, by split and file."""
        splits = {split.name: dict(split.left_out) for split in (self.train, self.eval)}
        return {name: files for name, files in splits.items() if files}

    def prepare(self, progress: Progress) -> None:
        """Makes what is to be kept on disk; see `Split.prepare`."""
        for split in (self.train, self.eval):
            split.prepare(progress)

    def check_room(self) -> None:
        """Looks whether there is room for that, and makes nothing; see `Split.check_room`.

        What of it is there already is in use from then on. So it is not removed as old, neither by
        another run nor when this one prepares its other split.
        """
        self.eval.check_room(besides=self.train.check_room())

    @property
    def num_classes(self) -> int:
        """Number of classes; every label of both splits is below it."""
        return len(self.class_names)


def open_dataset(config: DataConfig, progress: Progress = silent) -> Dataset:
    """Opens and checks what a run needs.

    Args:
        config: the `data` section.
        progress: told how far it is where that takes long; called from threads.

    Raises:
        UsageError: data that is missing, damaged or does not fit the config or itself, or what is
            to be kept on disk has no room there.
        DataError: an example cannot be read; few are looked at, where they are to be kept on disk.
    """
    dataset = _open(config, progress)
    dataset.check_room()
    return dataset


def _open(config: DataConfig, progress: Progress) -> Dataset:
    source, sizing = open_source(config, progress), sizes.sizing(config)
    names = split_names(config, source)
    with futures.ThreadPoolExecutor(len(names)) as pool:
        opened, *evals = pool.map(source.open, names)
    class_names = _class_names(config, source, opened)
    for split in (opened, *evals):
        _check_labels(split, len(class_names))
    train = sizes.for_training(opened, sizing)
    if train.random and config.cache == "device":
        raise UsageError(
            f"data.cache=device cannot hold data.crop={config.crop}, another part of an image at "
            "each step; set data.cache=auto"
        )
    if not evals:
        kept, held_out = _cut(opened, config.holdout or 0)
        return Dataset(
            Subset(train.name, train, kept, train.left_out),
            Subset(_HOLDOUT, sizes.for_evaluation(opened, sizing), held_out),
            class_names,
            _notes(source, [opened]),
        )
    evaluated = sizes.for_evaluation(evals[0], sizing)
    alike = train.image_shape == evaluated.image_shape
    if config.eval_image_size is not None:
        alike = train.image_shape[2] == evaluated.image_shape[2]
    if not alike:
        raise _unlike(train, evaluated)
    return Dataset(train, evaluated, class_names, _notes(source, [opened, *evals]))


def _notes(source: Source, splits: Iterable[Split | RawSplit]) -> tuple[str, ...]:
    """The source's, and what was left out of splits."""
    train, *evaluated = splits
    lines = list(source.notes)
    for split in evaluated:
        if split.name in parts_of(train.name):
            lines.append(f"split {split.name} is trained on and evaluated on")
    for split in (train, *evaluated):
        for file, error in split.left_out[:1]:
            lines.append(
                f"left out of {split.name}: {len(split.left_out):,} that cannot be decoded, first "
                f"{file}: {error}"
            )
    return tuple(lines)


def split_names(config: DataConfig, source: Source) -> list[str]:
    """The splits of the source that a run reads: the one it trains on, which a holdout is cut from.

    Without a holdout, also the one that it is evaluated on.
    """
    return [config.train_split] if config.holdout else [config.train_split, _eval(config, source)]


def _eval(config: DataConfig, source: Source) -> str:
    """The split to evaluate on where there is no holdout."""
    if config.eval_split is not None:
        return config.eval_split
    own = config.source in OWN_SOURCES and "test" not in source.split_names
    return "val" if own or "val" in source.split_names else "test"


def open_split(
    config: DataConfig,
    name: str | None,
    class_names: tuple[str, ...],
    progress: Progress = silent,
) -> Split:
    """Opens and checks one split as a run with this config evaluates on it.

    Args:
        config: the `data` section.
        name: `holdout`, or any split of the source; the training split comes without the holdout.
            None: the one that a run is evaluated on.
        class_names: the classes of the run. Where the data has names for its labels, they are
            found by them (files), or must be in the same order.
        progress: told how far it is where that takes long.

    Raises:
        UsageError: the split is not there, or damaged, or it has other classes.
    """
    config = for_other_data(config)
    if config.source in OWN_SOURCES:
        config = dataclasses.replace(config, class_names=class_names)
    source, sizing = open_source(config, progress), sizes.sizing(config)
    if name is None:
        name = _eval(config, source) if config.holdout is None else _HOLDOUT
    if name == _HOLDOUT and config.holdout is None:
        raise UsageError(
            f"there is no split {name!r} without data.holdout; "
            f"splits there: {', '.join(source.split_names) or 'none'}"
        )
    opened = source.open(config.train_split if name == _HOLDOUT else name)
    _check_same_classes(config, source, class_names)
    _check_labels(opened, len(class_names))
    split = sizes.for_evaluation(opened, sizing)
    if config.holdout is None or name not in (_HOLDOUT, config.train_split):
        return split
    kept, held_out = _cut(opened, config.holdout)
    if name == _HOLDOUT:
        return Subset(_HOLDOUT, split, held_out)
    return Subset(split.name, split, kept, split.left_out)


def _cut(split: Split | RawSplit, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows of the split without its holdout, and those of the holdout of `count` examples."""
    if count >= split.size:
        raise UsageError(
            f"data.holdout={count} leaves nothing of the {split.size} examples of split "
            f"{split.name}; set it below {split.size}"
        )
    return holdout_rows(split.size, count)


def _class_names(config: DataConfig, source: Source, train: Split | RawSplit) -> tuple[str, ...]:
    """The config's names, else the source's, else numbers."""
    names = config.class_names or source.class_names
    if names is None:
        return tuple(map(str, range(config.num_classes or _inferred_classes(train))))
    if config.num_classes not in (None, len(names)):
        raise UsageError(
            f"data.num_classes={config.num_classes} but data.source={config.source} has "
            f"{len(names)} classes; set it to {len(names)} or None, or set data.class_names"
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(
            f"data.source={config.source} has two classes of the name {twice!r}; set "
            "data.class_names to names of your own"
        )
    return names


def _check_same_classes(config: DataConfig, source: Source, class_names: tuple[str, ...]) -> None:
    names = config.class_names or source.class_names
    if names is None or names == class_names:
        return
    pairs = itertools.zip_longest(names, class_names)
    at, (theirs, ours) = next((k, pair) for k, pair in enumerate(pairs) if pair[0] != pair[1])
    said = ["missing" if name is None else repr(name) for name in (theirs, ours)]
    raise UsageError(
        f"class {at} of data.source={config.source} is {said[0]}, but the model's is {said[1]}; "
        "give data with the classes that it was trained for, in their order"
    )


def _inferred_classes(train: Split | RawSplit) -> int:
    """One more than the largest label, if every class has an example."""
    values, first, counts = np.unique(train.labels, return_index=True, return_counts=True)
    values = values[values >= 0]  # negative ones are refused with the labels out of range
    classes = int(train.labels.max()) + 1
    if len(values) < classes:
        gap = next(at for at, value in enumerate([*values, -1]) if at != value)
        raise UsageError(
            f"{train.origin}: the largest label {classes - 1} (at index {first[-1]}, "
            f"{counts[-1]} times) would make {classes} classes, but only {len(values)} have an "
            f"example (class {gap} has none); set data.num_classes, or mend the labels"
        )
    return classes


def _check_labels(split: Split | RawSplit, num_classes: int) -> None:
    bad = np.flatnonzero((split.labels < 0) | (split.labels >= num_classes))
    if bad.size:
        raise UsageError(
            f"{split.origin}: label {split.labels[bad[0]]} at index {bad[0]} of split {split.name} "
            f"is outside 0..{num_classes - 1}, as are {len(bad)} of its {split.size} labels; mend "
            "them, or train with data.num_classes or data.class_names that cover them"
        )


def _unlike(train: Split, evaluated: Split) -> UsageError:
    shapes = [shape_text(split.image_shape) for split in (evaluated, train)]
    if is_image(train.image_shape) and is_image(evaluated.image_shape):
        return UsageError(
            f"split {evaluated.name} has images {shapes[0]} but {train.name} {shapes[1]}; set "
            "data.image_size to bring both to one size, and give both as many channels"
        )
    return UsageError(
        f"an example of split {evaluated.name} is {shapes[0]}, but one of {train.name} "
        f"{shapes[1]}; give splits of the same kind of examples"
    )
