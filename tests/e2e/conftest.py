from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.command import Command
from e2e.digits import write_digits, write_recipe


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of IDX files with the first 1000 and 200 digits of MNIST."""
    folder = tmp_path_factory.mktemp("digits")
    write_digits(folder)
    return folder


@pytest.fixture(scope="session")
def new_command(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Callable[..., Command]:
    """Makes a command in a new folder, in which `digits.py` is a recipe of 20 steps."""
    cache = tmp_path_factory.mktemp("cache")

    def new(*, quickly: bool = False) -> Command:
        folder = tmp_path_factory.mktemp("place")
        write_recipe(folder, digits)
        return Command(folder, cache, quickly=quickly)

    return new


@pytest.fixture
def command(new_command: Callable[..., Command]) -> Command:
    """A command in a folder of its own."""
    return new_command()
