"""`data.source=tfds`: prepared data sets of TensorFlow Datasets."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from jaxtrain.config.schema import DataConfig
from jaxtrain.data.decode import MODES
from jaxtrain.data.tfds import folders
from jaxtrain.data.tfds.index import Index, Shard
from jaxtrain.data.tfds.prepare import prepare
from jaxtrain.data.tfds.records import FORMATS
from jaxtrain.data.tfds.split import ImageFeature, Part, TfdsSplit
from jaxtrain.errors import UsageError, one_line
from jaxtrain.files import expanded


class TfdsSource:
    """A prepared data set, as array_record or tfrecord, read without TensorFlow.

    No code of the data set is run: its files say all that is needed. Outside of its folder only
    the index of its records is looked at, which lies in the user's cache if the folder cannot be
    written.

    Args:
        config: the `data` section. `path` is the data_dir, or the folder of one version; without
            it `TFDS_DATA_DIR` counts, else `~/tensorflow_datasets`.

    Attributes:
        class_names: the names of the label feature; None if the label is a plain integer.
        split_names: the splits that the data set has; `open` takes expressions of them.

    Raises:
        UsageError: the data set is not there or cannot be read, or its features are not an image of
            8 bits and an integer label.
    """

    def __init__(self, config: DataConfig):
        self._folder = _folder(config)
        self._info = _info(self._folder, config)
        self._image = _image_feature(self._info, config.image_key)
        self.class_names = _class_names(self._info, config.label_key)
        self.split_names = tuple(self._info.splits)
        self.notes: Sequence[str] = ()
        self._format = FORMATS[self._info.file_format.value]
        self._index = Index(self._folder, config.label_key, self._format.scan)
        self._label_key = config.label_key

    def open(self, name: str) -> TfdsSplit:
        """Opens a split or an expression of splits, as in `train[:80%]+test[10:20]`.

        What an expression means, and how shares are rounded, is up to TensorFlow Datasets. The
        first time, the files that it needs are read as a whole, to index and to check them.

        Raises:
            UsageError: there is no such split or it has no examples; its files are missing or
                damaged; or a label is missing or does not fit into 32 bits.
        """
        instructions = self._instructions(name)
        shards = [Shard(Path(each.filename), each.examples_in_shard) for each in instructions]
        known = self._index.read(shards)
        parts = [
            Part(shard.path, known[shard.path.name], slice(each.skip, each.skip + each.take))
            for shard, each in zip(shards, instructions, strict=True)
        ]
        self._check_labels(parts)
        return TfdsSplit(name, parts, self._format, self._image, str(self._folder))

    def _instructions(self, name: str) -> list[Any]:
        """The parts of record files that an expression stands for, by TensorFlow Datasets."""
        there = ", ".join(
            f"{split} ({info.num_examples} examples)" for split, info in self._info.splits.items()
        )
        try:
            instructions: list[Any] = self._info.splits[name].file_instructions
        # Kinds of errors differ by what is wrong with the expression.
        except Exception as error:
            said = one_line(error).rstrip(".")
            raise UsageError(
                f"there is no split {name!r} in {self._folder} ({said}); its "
                f"splits: {there}, and parts of them as in train[:80%] or train[100:200]"
            ) from error
        # A slice that ends before it begins counts below nothing.
        if not instructions or any(each.take <= 0 for each in instructions):
            raise UsageError(
                f"split {name!r} has no examples in {self._folder}; its splits: {there}"
            )
        return instructions

    def _check_labels(self, parts: list[Part]) -> None:
        limits = np.iinfo(np.int32)
        for part in parts:
            labels = part.known.labels
            bad = np.flatnonzero((labels < limits.min) | (labels > limits.max))
            if bad.size:
                raise UsageError(
                    f"{part.path}: {self._label_key!r} of record {bad[0]} is {labels[bad[0]]}, "
                    "which is no class number; set data.label_key to the feature that is the class"
                )


def _folder(config: DataConfig) -> Path:
    """The folder of the version that a config names, prepared first if it asks for that."""
    folders.check_version(config.version)
    direct = None if config.path is None else expanded(config.path)
    try:
        if direct is not None and folders.is_prepared(direct):
            return direct
        wanted = folders.wanted(config)
        found = folders.find(wanted)
        if found is not None:
            return found
        if config.download:
            return prepare(wanted)
        raise folders.absent(wanted)
    except OSError as error:
        raise UsageError(
            f"{error.filename} cannot be read: {error.strerror}; make it readable or set data.path "
            "to another folder"
        ) from error


def _info(folder: Path, config: DataConfig) -> Any:
    """What the data set's own files say of it.

    Raises:
        UsageError: they cannot be read, are not those that the config names, or the records are in
            a format without random access.
    """
    try:
        info = tfds.builder_from_directory(folder).info
    # Damaged files end in errors of every kind.
    except Exception as error:
        raise UsageError(
            f"{folder} is not a data set that TensorFlow Datasets {tfds.__version__} can open: "
            f"{one_line(error)}; prepare it again"
        ) from error
    names = {info.name, f"{info.name}/{info.config_name}"}
    if config.name is not None and config.name not in names:
        raise UsageError(
            f"data.path={folder} holds {info.full_name}, not data.name={config.name}; "
            "set data.name=None, or give the folder of that data set"
        )
    if config.version is not None and not tfds.core.Version(info.version).match(config.version):
        raise UsageError(
            f"data.path={folder} holds {info.full_name}, not data.version={config.version}; set "
            "data.version=None, or give the folder of that version"
        )
    record_format = info.file_format.value
    if record_format not in FORMATS:
        raise UsageError(
            f"{folder} holds {record_format} files; prepare the data set as array_record, as "
            "--config.data.download=true does in another data.path"
        )
    return info


def _image_feature(info: Any, key: str) -> ImageFeature:
    feature = _feature(info, "image_key", key)
    if not _is_image(feature):
        fitting = [name for name, each in info.features.items() if _is_image(each)]
        raise _unfit(info, "image_key", key, "an image of uint8 with 1, 3 or 4 channels", fitting)
    shape = feature.shape
    return ImageFeature(key, shape[-1], None if None in shape else shape)


def _class_names(info: Any, key: str) -> tuple[str, ...] | None:
    feature = _feature(info, "label_key", key)
    if not _is_label(feature):
        fitting = [name for name, each in info.features.items() if _is_label(each)]
        raise _unfit(info, "label_key", key, "a class label or an integer", fitting)
    if not isinstance(feature, tfds.features.ClassLabel) or feature.num_classes is None:
        return None
    return tuple(feature.names)


def _feature(info: Any, data_key: str, name: str) -> Any:
    """A feature by its name."""
    if name not in info.features:
        raise UsageError(
            f"data.{data_key}={name!r} is no feature of {info.full_name}; its features: "
            f"{', '.join(sorted(info.features))}"
        )
    return info.features[name]


def _is_image(feature: Any) -> bool:
    return (
        isinstance(feature, tfds.features.Image)
        and feature.np_dtype == np.uint8
        and len(feature.shape) == 3
        and feature.shape[-1] in MODES
    )


def _is_label(feature: Any) -> bool:
    # As it is stored: a tensor may be stored compressed.
    stored = feature.get_serialized_info()
    return (
        isinstance(feature, tfds.features.Tensor)
        and stored.shape == ()
        and np.issubdtype(stored.np_dtype, np.integer)
    )


def _unfit(info: Any, data_key: str, name: str, needed: str, fitting: list[str]) -> UsageError:
    """The error for a feature of another kind; lists those that would do."""
    return UsageError(
        f"data.{data_key}={name!r} is {info.features[name]} in {info.full_name}, but {needed} is "
        f"needed; features of that kind: {', '.join(sorted(fitting)) or 'none'}"
    )
