from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts.cloud import Cloud


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    """A TPU VM of four workers that can be created."""
    cloud = Cloud(tmp_path / "the cloud")
    yield cloud
    cloud.clean_up()


@pytest.fixture
def pod(cloud: Cloud) -> Cloud:
    """One that is ready, with a program in place of jaxtrain."""
    cloud.install()
    return cloud
