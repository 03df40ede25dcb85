"""The installed `jaxtrain` command as a process, and what it leaves behind."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, TypeVar

import compiling
import jax
import numpy as np
from orbax.checkpoint import v1 as ocp
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from jaxtrain import checkpoint

SCRIPT = Path(sys.executable).with_name("jaxtrain")
TIMEOUT_SECONDS = 120

Completed = subprocess.CompletedProcess[str]
T = TypeVar("T")

# What each command of several in one process says, and its status, are in files.
IN_TURN = """
import json, os, sys
from jaxtrain.cli import main
for number, words in enumerate(json.loads(sys.argv[2])):
    for descriptor, name in ((1, "out"), (2, "err")):
        file = os.open(f"{sys.argv[1]}/{number}.{name}", os.O_CREAT | os.O_WRONLY)
        os.dup2(file, descriptor)
        os.close(file)
    with open(f"{sys.argv[1]}/{number}.status", "w") as file:
        file.write(str(main(words)))
"""


class Command:
    """Runs the command in a folder of a test, with one CPU device unless said.

    Args:
        folder: where it runs.
        cache: where XLA's compilations are kept for the next process.
        quickly: whether XLA compiles quickly rather than well, and not as users do.
    """

    def __init__(self, folder: Path, cache: Path, *, quickly: bool = False) -> None:
        self.folder = folder
        self.cache = cache
        self.quickly = quickly

    def __call__(
        self, *words: str, timeout_seconds: float = TIMEOUT_SECONDS, **options: Any
    ) -> Completed:
        """Runs to the end; see `start` for the other options."""
        with self.start(*words, **options) as process:
            out, err = process.communicate(timeout=timeout_seconds)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def in_turn(self, *calls: Sequence[str], before: str = "", **options: Any) -> list[Completed]:
        """Runs several commands in one process, one after the other.

        For tests of many commands that are not about processes: most of what a refusal takes is
        the start of Python and JAX.

        Args:
            calls: the arguments of each.
            before: a Python program that is run first.
            options: as for `start`.
        """
        with tempfile.TemporaryDirectory() as folder:
            done = self(
                *(folder, json.dumps(calls)),
                program=(sys.executable, "-c", before + IN_TURN),
                timeout_seconds=TIMEOUT_SECONDS * len(calls),
                **options,
            )
            files = sorted(Path(folder).iterdir())
            said = {file.name: file.read_text() for file in files}
        assert (done.returncode, len(said)) == (0, 3 * len(calls)), (done, said)
        return [
            subprocess.CompletedProcess(
                list(words),
                *(int(said[f"{number}.status"]), said[f"{number}.out"], said[f"{number}.err"]),
            )
            for number, words in enumerate(calls)
        ]

    @contextlib.contextmanager
    def start(
        self,
        *words: str,
        devices: int = 1,
        cached: bool = True,
        program: Sequence[str] = (str(SCRIPT),),
        environment: Mapping[str, str] | None = None,
    ) -> Iterator[subprocess.Popen[str]]:
        """Starts it, and kills it at the end if it still lives.

        Args:
            words: its arguments.
            devices: CPU devices that XLA pretends to have.
            cached: whether compilations are taken from earlier processes.
            program: what to run.
            environment: more variables.
        """
        variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("JAX_", "XLA_", "TF_", "PYTHON"))
        }
        variables["JAX_PLATFORMS"] = "cpu"
        flags = [compiling.QUICKLY] if self.quickly else []
        if devices > 1:
            flags.append(f"--xla_force_host_platform_device_count={devices}")
        if flags:
            variables["XLA_FLAGS"] = " ".join(flags)
        if cached:
            variables["JAX_COMPILATION_CACHE_DIR"] = str(self.cache)
            variables["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
            variables["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
        with subprocess.Popen(
            [*program, *words],
            cwd=self.folder,
            env={**variables, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def result(self, *words: str, **options: Any) -> dict[str, Any]:
        """Runs what must succeed, and returns the one line of JSON on its stdout."""
        return result(self(*words, **options))

    def refused(self, *words: str, status: int = 2, **options: Any) -> str:
        """Runs what must be refused before anything is said but the error; returns its text."""
        return refusal(self(*words, **options), status)


def together(*calls: Callable[[], T]) -> list[T]:
    """What the calls return, two of which run at a time."""
    with futures.ThreadPoolExecutor(2) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def result(done: Completed) -> dict[str, Any]:
    """The result of a process that must have succeeded; it is all that is on stdout."""
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "warning" not in done.stderr.casefold()
    assert done.stdout.count("\n") == 1
    assert done.stdout.endswith("}\n")
    return json.loads(done.stdout)


def refusal(done: Completed, status: int = 2) -> str:
    """The text of an expected error that is all that was said."""
    message = error(done, status)
    assert done.stderr.count("\n") == 1
    return message


def error(done: Completed, status: int) -> str:
    """The text of an expected error: the last line on stderr, without a traceback."""
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    *before, line = done.stderr.splitlines()
    assert not any(said.startswith("jaxtrain:") for said in before)
    assert line.startswith("jaxtrain: error: ")
    return line.removeprefix("jaxtrain: error: ")


def read_metrics(workdir: Path) -> list[dict[str, Any]]:
    """The events of metrics.jsonl."""
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def steps_of(workdir: Path, split: str) -> list[int]:
    """The steps that metrics.jsonl has of one split, in its order."""
    return [event["step"] for event in read_metrics(workdir) if event["split"] == split]


def read_series(workdir: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar that TensorBoard shows: tag to (step, value)."""
    events = EventAccumulator(str(workdir / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def saved_steps(workdir: Path) -> list[int]:
    """The steps whose checkpoints are there; nothing else may be."""
    directory = workdir / "checkpoints"
    steps = checkpoint.list_steps(directory)
    assert sorted(map(str, steps)) == sorted(entry.name for entry in directory.iterdir())
    return steps


def read_arrays(workdir: Path, step: int | None = None) -> dict[str, np.ndarray]:
    """All arrays of a checkpoint, the last unless said, by name."""
    directory = workdir / "checkpoints"
    path = directory / str(checkpoint.list_steps(directory)[-1] if step is None else step)
    arrays = {}
    for item in ("model", "training"):
        with warnings.catch_warnings(action="ignore"):  # that it goes by the checkpoint's devices
            tree = ocp.load_checkpointables(path.absolute(), {item: None})[item]
        for name, leaf in jax.tree.leaves_with_path(tree):
            arrays[f"{item}{jax.tree_util.keystr(name)}"] = np.asarray(leaf)
    return arrays


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of every file; `.lock` says who had the folder last, so it may change."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }
