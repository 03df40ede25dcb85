"""The data that a config names: splits, holdout and classes, checked before anything runs."""

import dataclasses
from concurrent import futures
from typing import Final

import numpy as np

from jaxtrain.config.choices import unknown
from jaxtrain.config.schema import DataConfig
from jaxtrain.data.sampler import holdout_rows
from jaxtrain.data.sources import SOURCES, Source
from jaxtrain.data.split import Split, Subset
from jaxtrain.errors import UsageError

_HOLDOUT: Final = "holdout"


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """What a run trains on and is evaluated on.

    Attributes:
        train: the training examples, without the holdout.
        eval: the holdout if `data.holdout` is set, else `data.eval_split`.
        class_names: one name a class, in label order.
    """

    train: Split
    eval: Split
    class_names: tuple[str, ...]

    @property
    def num_classes(self) -> int:
        """Number of classes; every label of both splits is below it."""
        return len(self.class_names)


def open_dataset(config: DataConfig) -> Dataset:
    """Opens and checks what a run needs.

    Args:
        config: the `data` section.

    Raises:
        UsageError: data that is missing, damaged or does not fit the config or itself.
    """
    source = _source(config)
    names = [config.train_split] if config.holdout else [config.train_split, config.eval_split]
    with futures.ThreadPoolExecutor(len(names)) as pool:
        train, *evals = pool.map(source.open, names)
    class_names = _class_names(config, source, train)
    for split in (train, *evals):
        _check_labels(split, len(class_names))
    if not evals:
        train, held_out = _cut(train, config.holdout or 0)
        return Dataset(train, held_out, class_names)
    if train.image_shape != evals[0].image_shape:
        raise UsageError(
            f"split {evals[0].name} has images {_shape(evals[0])} but {train.name} "
            f"{_shape(train)}; both must have one shape"
        )
    return Dataset(train, evals[0], class_names)


def eval_split_name(config: DataConfig) -> str:
    """The split that a run is evaluated on: the holdout if there is one."""
    return config.eval_split if config.holdout is None else _HOLDOUT


def open_split(config: DataConfig, name: str, num_classes: int) -> Split:
    """Opens and checks one split as a run with this config has it.

    Args:
        config: the `data` section.
        name: `holdout`, or any split of the source; the training split comes without the holdout.
        num_classes: number of classes that the labels must fit.

    Raises:
        UsageError: the split is not there, or damaged, or a label does not fit.
    """
    source = _source(config)
    if name == _HOLDOUT and config.holdout is None:
        raise UsageError(
            f"there is no split {name!r} without data.holdout; "
            f"splits there: {', '.join(source.split_names) or 'none'}"
        )
    split = source.open(config.train_split if name == _HOLDOUT else name)
    _check_labels(split, num_classes)
    if config.holdout is None:
        return split
    if name == _HOLDOUT:
        return _cut(split, config.holdout)[1]
    return _cut(split, config.holdout)[0] if name == config.train_split else split


def _source(config: DataConfig) -> Source:
    if config.source not in SOURCES:
        raise unknown("data.source", config.source, SOURCES)
    return SOURCES[config.source](config)


def _cut(split: Split, count: int) -> tuple[Split, Split]:
    """The split without its holdout, and the holdout of `count` examples."""
    if count >= split.size:
        raise UsageError(
            f"data.holdout={count} leaves nothing of the {split.size} examples of split "
            f"{split.name}; set it below {split.size}"
        )
    kept, held_out = holdout_rows(split.size, count)
    return Subset(split.name, split, kept), Subset(_HOLDOUT, split, held_out)


def _class_names(config: DataConfig, source: Source, train: Split) -> tuple[str, ...]:
    """The config's names, else the source's, else numbers."""
    names = config.class_names or source.class_names
    if names is None:
        return tuple(map(str, range(config.num_classes or _inferred_classes(train))))
    if config.num_classes not in (None, len(names)):
        raise UsageError(
            f"data.num_classes={config.num_classes} but data.source={config.source} has "
            f"{len(names)} classes; set it to {len(names)} or None, or set data.class_names"
        )
    return names


def _inferred_classes(train: Split) -> int:
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


def _check_labels(split: Split, num_classes: int) -> None:
    bad = np.flatnonzero((split.labels < 0) | (split.labels >= num_classes))
    if bad.size:
        raise UsageError(
            f"{split.origin}: label {split.labels[bad[0]]} at index {bad[0]} of split {split.name} "
            f"is outside 0..{num_classes - 1}, as are {len(bad)} of its {split.size} labels; mend "
            "them, or train with data.num_classes or data.class_names that cover them"
        )


def _shape(split: Split) -> str:
    return "x".join(map(str, split.image_shape))
