"""Eight CPU devices and no silent broadcasts in this process, and places that cannot be written."""

import contextlib
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import compiling
import pytest

os.environ["JAX_PLATFORMS"] = "cpu"
# Most tests of the installed command compile as users do: see `compiling` and `e2e.command`.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {compiling.QUICKLY}"

import hypothesis
import jax
from xdist.scheduler import LoadFileScheduling

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("any_machine", deadline=None)
hypothesis.settings.load_profile("any_machine")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")

# A shell has what it starts in the background ignore Ctrl-C, and nohup has it ignore SIGHUP. The
# processes of the tests would inherit that, and could not even set a trap.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

NOBODY = 65534

# Files that one worker runs, and no two at a time.
GROUPS = {
    # Tests of several processes at once, which wait for each other.
    "processes": re.compile(r"tests/scripts/|processes|launch_local|bucket"),
    # They share networks, and TensorFlow in memory.
    "formats": re.compile(r"tests/formats/"),
}
# What takes a minute or more, the longest first; then the other tests of the command.
LONG = (
    "processes",
    "tests/e2e/test_export.py",
    "tests/e2e/test_configs.py",
    "tests/e2e/test_vision.py",
    "tests/e2e/test_wide.py",
    "tests/e2e/test_layouts.py",
    "formats",
    "tests/test_step.py",
    "tests/e2e/",
)


def group_of(nodeid: str) -> str:
    """The group that a test is run with: its file's, or its file alone."""
    file = nodeid.partition("::")[0]
    return next((name for name, files in GROUPS.items() if files.search(file)), file)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Has the longest groups begin first, so that all workers end at about the same time."""

    def rank(item: pytest.Item) -> int:
        group = group_of(item.nodeid)
        return next((i for i, name in enumerate(LONG) if group.startswith(name)), len(LONG))

    items.sort(key=rank)


class OneGroupOneWorker(LoadFileScheduling):
    """What `pytest -n` runs where: the tests of a group share what they set up."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneGroupOneWorker:
    config.option.loadscopereorder = False  # the order of `pytest_collection_modifyitems` counts
    return OneGroupOneWorker(config, log)


@contextlib.contextmanager
def with_modes(modes: Mapping[Path, int]) -> Iterator[None]:
    """Files and folders have these permissions, which count for root too."""
    before = {path: path.stat().st_mode for path in modes}
    root = os.geteuid() == 0
    for path, mode in modes.items():
        path.chmod(mode)
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        for path, mode in before.items():
            path.chmod(mode)


@pytest.fixture
def locked() -> Callable[[Path, int], Any]:
    """A context manager in which a folder has the permissions given, for root too."""
    return lambda folder, mode: with_modes({folder: mode})


@pytest.fixture
def read_only() -> Callable[[Path], Any]:
    """A context manager in which a folder and all in it cannot be written, by root neither."""
    return lambda folder: with_modes(
        {path: 0o555 if path.is_dir() else 0o444 for path in [folder, *folder.rglob("*")]}
    )


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder that every user can reach, unlike `tmp_path`."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
