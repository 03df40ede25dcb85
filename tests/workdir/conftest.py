import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxtrain.config import Config, from_dict

NOBODY = 65534


def make_config(**changes: Any) -> Config:
    """A config of 3 epochs; `section__key=value` sets a key."""
    nested: dict[str, Any] = {"train": {"epochs": 3}}
    for name, value in changes.items():
        section, _, leaf = name.rpartition("__")
        (nested.setdefault(section, {}) if section else nested)[leaf] = value
    return from_dict(nested)


@pytest.fixture
def config() -> Callable[..., Config]:
    return make_config


@pytest.fixture
def read_only() -> Iterator[Callable[[Path], Any]]:
    """A context manager in which a folder and all in it cannot be written, by root neither."""

    @contextlib.contextmanager
    def protect(folder: Path) -> Iterator[None]:
        modes = {path: path.stat().st_mode for path in [folder, *folder.rglob("*")]}
        root = os.geteuid() == 0
        for path in modes:
            path.chmod(0o555 if path.is_dir() else 0o444)
        if root:
            os.seteuid(NOBODY)
        try:
            yield
        finally:
            if root:
                os.seteuid(0)
            for path, mode in modes.items():
                path.chmod(mode)

    return protect


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder that every user can reach, unlike `tmp_path`."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
