"""An average of the weights, from training to an export."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from e2e.command import Command, read_arrays, read_metrics, together

RUN = ["--config=digits.py", "--config.train.ema_decay=0.9", "--config.checkpoint.every_steps=8"]


@pytest.fixture(scope="module")
def command(new_command: Callable[[], Command]) -> Command:
    return new_command()


@pytest.fixture(scope="module")
def trained(command: Command) -> Path:
    command.result("train", *RUN, "--workdir=runs/ema")
    return command.folder / "runs/ema"


def test_both_sets_of_weights_are_evaluated(command: Command, trained: Path) -> None:
    result = json.loads((trained / "result.json").read_text())["eval"]
    assert result["weights"] == "ema"
    average, raw = together(
        partial(command.result, "eval", "--workdir=runs/ema"),
        partial(command.result, "eval", "--workdir=runs/ema", "--config.eval.weights=raw"),
    )
    for name in ("loss", "accuracy"):
        assert average["eval"][name] == result[name]
        assert raw["eval"][name] == result[f"raw_{name}"]
    assert average["eval"]["loss"] != raw["eval"]["loss"]
    assert raw["eval"]["weights"] == "raw"
    files = {path.name for path in (trained / "eval").iterdir()}
    assert {"test-20.json", "test-20-raw.json"} <= files


def test_it_goes_on_bit_for_bit(command: Command, trained: Path) -> None:
    again = command.folder / "runs/again"
    shutil.copytree(trained, again)
    (again / "result.json").unlink()
    for step in (16, 20):
        shutil.rmtree(again / "checkpoints" / str(step))
    command.result("train", "--workdir=runs/again")
    expected, found = read_arrays(trained), read_arrays(again)
    assert any("ema" in name for name in expected)
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    for one, other in zip(read_metrics(trained), read_metrics(again), strict=True):
        for name in ("step", "split", "loss", "accuracy"):
            assert one[name] == other[name]


def test_an_export_is_of_the_average(command: Command, trained: Path) -> None:
    exported = ["export", "--workdir=runs/ema", "--format=stablehlo", "--output=average"]
    command.result(*exported)
    scored = command.result("eval", "--workdir=runs/ema", "--exported=average")
    result = json.loads((trained / "result.json").read_text())["eval"]
    assert scored["eval"]["accuracy"] == result["accuracy"]
    assert scored["eval"]["loss"] == pytest.approx(result["loss"], rel=1e-5)


def test_a_run_without_an_average_has_none_to_use(command: Command) -> None:
    words = ["--config=digits.py", "--config.eval.weights=ema", "--workdir=runs/none"]
    assert "needs an average of the weights" in command.refused("train", *words)
