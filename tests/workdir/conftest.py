from collections.abc import Callable
from typing import Any

import pytest

from jaxtrain.config import Config, from_dict


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
