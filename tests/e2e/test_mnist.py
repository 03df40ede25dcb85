"""The command of the README on all of MNIST, and what a person does after it."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.command import Command, Completed, read_metrics, read_series, result, saved_steps

from jaxtrain.config import load_json

WORDS = ["--config=mnist_mlp", "--config.train.epochs=1"]
STEPS = 469

# A package that tells of its import, and fails as if it were not there.
SPY = """
import os, traceback
with open(os.environ["SPY"], "w") as file:
    traceback.print_stack(file=file)
raise ImportError("no TensorFlow here")
"""


@pytest.fixture(scope="module")
def command(new_command: Callable[[], Command]) -> Command:
    return new_command()


@pytest.fixture(scope="module")
def spied(command: Command) -> dict[str, str]:
    """The environment in which a process that imports TensorFlow leaves a file `imported`."""
    package = command.folder / "spy" / "tensorflow"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(SPY)
    return {"PYTHONPATH": str(package.parent), "SPY": str(command.folder / "imported")}


@pytest.fixture(scope="module")
def trained(command: Command, spied: dict[str, str]) -> Completed:
    """The finished process, with nothing compiled before."""
    return command("train", *WORDS, cached=False, environment=spied)


@pytest.fixture(scope="module")
def workdir(command: Command, trained: Completed) -> Path:
    (folder,) = (command.folder / "runs").iterdir()
    return folder


@pytest.fixture(scope="module")
def evaluated(command: Command, spied: dict[str, str], workdir: Path) -> Completed:
    """The finished process, this time started as a module of Python."""
    program = [sys.executable, "-m", "jaxtrain"]
    return command("eval", f"--workdir={workdir}", program=program, environment=spied)


def test_it_learns_to_read_digits(trained: Completed) -> None:
    summary = result(trained)
    assert summary["status"] == "finished"
    assert summary["step"] == STEPS
    assert summary["eval"]["count"] == 10_000
    assert summary["eval"]["split"] == "test"
    assert 0.96 < summary["eval"]["accuracy"] < 1
    assert 0.9 < summary["train"]["accuracy"] < 1


def test_it_says_what_it_does(command: Command, trained: Completed, workdir: Path) -> None:
    name = workdir.relative_to(command.folder)
    assert re.fullmatch(r"runs/mnist_mlp-[0-9a-f]{8}", str(name))
    lines = trained.stderr.splitlines()
    assert lines[0] == f"workdir  {name}"
    assert lines.index("compiling") < next(
        number for number, line in enumerate(lines) if line.startswith(f"step {STEPS}/{STEPS}")
    )
    assert any(re.search(r"train +loss .* images/s", line) for line in lines)
    assert f"evaluate it:  jaxtrain eval --workdir={name}" in lines
    assert "see it:       tensorboard --logdir=runs" in lines


def test_it_leaves_a_whole_run(trained: Completed, workdir: Path) -> None:
    names = {entry.name for entry in workdir.iterdir() if not entry.name.startswith(".")}
    assert names >= {
        "checkpoints",
        "classes.json",
        "config.json",
        "metrics.jsonl",
        "result.json",
        "tensorboard",
    }
    config = load_json(workdir / "config.json")
    assert (config.train.epochs, config.model.mlp.hidden_sizes) == (1, (512,))
    assert json.loads((workdir / "classes.json").read_text()) == list("0123456789")
    assert json.loads((workdir / "result.json").read_text()) == result(trained)
    assert saved_steps(workdir) == [STEPS]
    trained_events = [event for event in read_metrics(workdir) if event["split"] == "train"]
    assert [event["step"] for event in trained_events] == [100, 200, 300, 400, STEPS]
    series = read_series(workdir)
    for name, tag in {
        "loss": "train/loss",
        "accuracy": "train/accuracy",
        "learning_rate": "learning_rate",
        "images_per_second": "images_per_second",
    }.items():
        assert series[tag] == [
            (event["step"], pytest.approx(event[name], rel=1e-6)) for event in trained_events
        ]
    for name in ("loss", "accuracy"):
        expected = pytest.approx(result(trained)["eval"][name], rel=1e-6)
        assert series[f"eval/{name}"] == series[f"final/{name}"] == [(STEPS, expected)]


def test_eval_gives_the_numbers_of_training_to_the_last_digit(
    evaluated: Completed, trained: Completed, workdir: Path
) -> None:
    summary = result(evaluated)
    assert summary["status"] == "evaluated"
    assert summary["step"] == STEPS
    assert summary["eval"] == result(trained)["eval"]
    kept = json.loads((workdir / "eval" / f"test-{STEPS}.json").read_text())
    assert kept["eval"] == summary["eval"]
    classes = kept["classes"].values()
    assert sum(each["count"] for each in classes) == 10_000
    right = sum(each["count"] * each["accuracy"] for each in classes)
    assert right == pytest.approx(summary["eval"]["accuracy"] * 10_000)


def test_tensorflow_is_never_imported(
    command: Command, spied: dict[str, str], trained: Completed, evaluated: Completed
) -> None:
    told = Path(spied["SPY"])
    assert not told.exists(), told.read_text()
    command("-c", "import tensorflow", program=[sys.executable], environment=spied)
    assert told.exists()
