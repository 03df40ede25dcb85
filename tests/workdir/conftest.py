from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bucket_service import Service, serve

from jaxtrain.config import Config, from_dict
from jaxtrain.files import bucket


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


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serve() as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment.items():
            patch.setenv(name, value)
        for name in ("EPATH_USE_TF", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"):
            patch.setenv(name, "false")
        patch.setenv("GCE_METADATA_DETECT_RETRIES", "1")
        yield running
    bucket._bucket.cache_clear()


@pytest.fixture
def run(service: Service, request: pytest.FixtureRequest) -> str:
    """The name of a new run; it lies in gs://bucket."""
    return request.node.name
