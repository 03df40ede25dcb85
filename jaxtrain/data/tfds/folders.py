"""Where prepared data sets lie: `<data_dir>/<name>[/<config>]/<version>`."""

import dataclasses
import difflib
import json
import os
import re
from pathlib import Path
from typing import Final

import tensorflow_datasets as tfds

from jaxtrain.config.schema import DataConfig
from jaxtrain.errors import UsageError, some
from jaxtrain.files import expanded

_INFO: Final = "dataset_info.json"
_NAME: Final = re.compile(r"(?P<name>\w+)(?:/(?P<config>[\w.\-]+))?")
_VERSION: Final = re.compile(r"(\d+|\*)(\.(\d+|\*)){2}")


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The data set that a config names.

    Attributes:
        data_dir: the folder of all data sets.
        name: its name.
        config: the name of its configuration; None for the default one.
        version: `1.2.3`, or with wildcards as in `1.*.*`; None for the newest.
    """

    data_dir: Path
    name: str
    config: str | None
    version: str | None

    @property
    def full_name(self) -> str:
        """Name and configuration, as `data.name` has them."""
        return self.name if self.config is None else f"{self.name}/{self.config}"

    @property
    def folder(self) -> Path:
        """Where its versions lie, or its configurations."""
        return self.data_dir / self.full_name


def is_prepared(folder: Path) -> bool:
    """Whether a folder is that of one version of a data set."""
    return (folder / _INFO).is_file()


def wanted(config: DataConfig) -> Wanted:
    """Reads `data.path` as the data_dir, `data.name` and `data.version`.

    Raises:
        UsageError: no name, or something that cannot be a name or a local folder.
    """
    data_dir = _data_dir(config.path)
    if config.name is None:
        raise UsageError(
            "data.source=tfds needs data.name, as in data.name=cifar10, or as data.path the folder "
            f"of one version of a data set, which holds {_INFO}; data.path is "
            + _state(data_dir, [*map(str, sorted(_versions(data_dir))), *_names(data_dir)])
        )
    match = _NAME.fullmatch(config.name)
    if match is None:
        raise UsageError(
            f"data.name={config.name!r} is not NAME or NAME/CONFIG, as in cifar10 or "
            "imagenette/160px-v2; the version is data.version"
        )
    return Wanted(data_dir, match["name"], match["config"], config.version)


def check_version(version: str | None) -> None:
    """Refuses what cannot be a version.

    Raises:
        UsageError: it is none.
    """
    if version is not None and not _VERSION.fullmatch(version):
        raise UsageError(
            f"data.version={version!r} is no version as in 3.0.1, or 3.*.* for the newest of those"
        )


def find(wanted: Wanted) -> Path | None:
    """The folder of the version that is wanted, if it is prepared."""
    folders = [wanted.folder]
    if wanted.config is None:
        folders += [wanted.folder / name for name in _default_configs(wanted.folder)]
    for folder in folders:
        versions = [version for version in _versions(folder) if _matches(version, wanted.version)]
        if versions:
            return folder / str(max(versions))
    return None


def absent(wanted: Wanted) -> UsageError:
    """The error for a data set that is not prepared: where it was looked for, and what to do."""
    known = tfds.list_builders(with_community_datasets=False)
    there = _names(wanted.data_dir)
    if wanted.name not in (*known, *there):
        nearest = difflib.get_close_matches(wanted.name, {*there, *known}, cutoff=0.75)
        hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
        return UsageError(
            f"data.name={wanted.full_name} is neither in {_state(wanted.data_dir, there)} nor "
            f"known to TensorFlow Datasets {tfds.__version__}{hint}"
        )
    version = "" if wanted.version is None else f" {wanted.version}"
    state = _state(wanted.data_dir / wanted.name, _variants(wanted.data_dir / wanted.name))
    download = ", or add --config.data.download=true to download and prepare it"
    return UsageError(
        f"{wanted.full_name}{version} is not prepared in {state}; set data.path to the folder that "
        f"holds {wanted.name}/, or data.name and data.version to what is there"
        + (download if wanted.name in known else "")
    )


def _data_dir(path: str | None) -> Path:
    """`data.path`, else what TensorFlow Datasets would take."""
    if path is None:
        path = os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    if "://" in path:
        raise UsageError(f"data.path={path}: buckets are not supported yet; use a local folder")
    return expanded(path)


def _matches(version: tfds.core.Version, wanted: str | None) -> bool:
    return wanted is None or version.match(wanted)


def _versions(folder: Path) -> list[tfds.core.Version]:
    """The versions that are prepared in the folder of a data set or a configuration."""
    names = (info.parent.name for info in folder.glob(f"*/{_INFO}"))
    return [tfds.core.Version(name) for name in names if tfds.core.Version.is_valid(name)]


def _configs(folder: Path) -> list[str]:
    """The configurations in the folder of a data set of which versions are prepared."""
    return sorted({info.parent.parent.name for info in folder.glob(f"*/*/{_INFO}")})


def _default_configs(folder: Path) -> list[str]:
    """The configuration that is meant where none is named: the default, else the only one."""
    try:
        named = json.loads((folder / ".config" / "metadata.json").read_text())
        return [f"{named['default_config_name']}"]
    except (OSError, ValueError, KeyError, TypeError):
        configs = _configs(folder)
        return configs if len(configs) == 1 else []


def _variants(folder: Path) -> list[str]:
    """What is prepared of one data set: `3.0.1`, or `config/3.0.1`."""
    return [
        *map(str, sorted(_versions(folder))),
        *(
            f"{config}/{each}"
            for config in _configs(folder)
            for each in sorted(_versions(folder / config))
        ),
    ]


def _names(data_dir: Path) -> list[str]:
    """The data sets of which something is prepared."""
    infos = [*data_dir.glob(f"*/*/{_INFO}"), *data_dir.glob(f"*/*/*/{_INFO}")]
    return sorted({info.relative_to(data_dir).parts[0] for info in infos})


def _state(folder: Path, content: list[str]) -> str:
    """A folder and what it holds, in words."""
    if not folder.is_dir():
        return f"{folder} (there is no such folder)"
    return f"{folder} (there: {some(content) or 'nothing'})"
