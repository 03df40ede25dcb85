"""Runs that start with the weights of another run, or of a file, through the command."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import pytorch_resnets
import safetensors.numpy
from e2e.command import Command, read_arrays, refusal, result

SHORT = ["--config=digits.py", "--config.train.steps=2", "--config.train.batch_size=20"]
FROM_RUN = [
    *SHORT,
    "--config.model.init_from=runs/base",
    "--config.model.freeze=backbone",
    "--config.checkpoint.every_steps=1",
]
OTHER_CLASSES = ["--config.data.num_classes=12", "--config.data.mean=0.1"]
RESNET = [
    *SHORT,
    "--config.model.name=resnet18",
    "--config.model.resnet.stem=cifar",
    "--config.model.freeze=backbone",
]
NARROW = "--config.model.resnet.width=0.0625"
FROM_FILE = [*RESNET, NARROW, "--config.model.init_from=resnet18.safetensors"]
KERNEL = "model['params']['hidden_0']['kernel']"


@pytest.fixture(scope="module")
def command(new_command: Callable[..., Command]) -> Command:
    """A command beside a run `base` of 10 classes and a file of a narrow ResNet's weights."""
    command = new_command(quickly=True)
    command.result("train", *SHORT, "--workdir=runs/base")
    shapes = pytorch_resnets.torchvision("resnet18", classes=7, width=0.0625, side=3)
    content = safetensors.numpy.save(pytorch_resnets.weights(shapes))
    (command.folder / "resnet18.safetensors").write_bytes(content)
    return command


@pytest.fixture(scope="module")
def started(command: Command) -> Path:
    """A run of other classes that started with the weights of `base`."""
    done = command("train", *FROM_RUN, *OTHER_CLASSES, "--workdir=runs/other")
    assert "weights  the head of runs/base is replaced by a new one" in done.stderr
    said = "runs/base was trained with another mean of examples: (0.0,) there, (0.1,) here"
    assert f"weights  {said}" in done.stderr
    assert result(done)["status"] == "finished"
    return command.folder / "runs/other"


def test_a_run_starts_with_the_weights_of_another(command: Command, started: Path) -> None:
    base, found = read_arrays(command.folder / "runs/base"), read_arrays(started)
    np.testing.assert_array_equal(found[KERNEL], base[KERNEL])
    assert found["model['params']['head']['kernel']"].shape == (32, 12)


def test_it_goes_on_without_them(command: Command, started: Path) -> None:
    again = command.folder / "runs/again"
    shutil.copytree(started, again)
    (again / "result.json").unlink()
    shutil.rmtree(again / "checkpoints/2")
    gone = command.folder / "gone"
    (command.folder / "runs/base").rename(gone)
    try:
        done = command("train", *FROM_RUN, *OTHER_CLASSES, "--workdir=runs/again")
    finally:
        gone.rename(command.folder / "runs/base")
    assert result(done)["step"] == 2
    assert "weights  " not in done.stderr
    expected = read_arrays(started)
    for name, array in read_arrays(again).items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_a_run_starts_with_the_weights_of_a_file(command: Command) -> None:
    done = command("train", *FROM_FILE, "--workdir=runs/file")
    assert result(done)["status"] == "finished"
    for said in (
        "the file's head for 7 classes is replaced by a new one for 10",
        "the first kernels of red, green and blue are summed for grey images",
    ):
        assert f"weights  {said}" in done.stderr
    tensors = safetensors.numpy.load((command.folder / "resnet18.safetensors").read_bytes())
    found = read_arrays(command.folder / "runs/file")
    kernel = found["model['params']['stage1_block1']['conv1']['kernel']"]
    expected = tensors["layer1.1.conv1.weight"].transpose(2, 3, 1, 0)
    np.testing.assert_array_equal(kernel, expected)


def test_weights_are_checked_before_anything_is_written(command: Command) -> None:
    workdir = "--workdir=runs/none"
    gone = "--config.model.init_from=gone.pth"
    wide = "--config.model.resnet.width=0.125"
    refused = command.in_turn(
        ["train", *SHORT, gone, workdir],
        ["train", *FROM_RUN, "--config.model.mlp.hidden_sizes=31,", workdir],
        ["train", *FROM_FILE, wide, workdir],
        ["check", *SHORT, gone, "--json"],
        ["check", *FROM_FILE, "--json"],
    )
    assert "model.init_from=gone.pth cannot be read: No such file" in refusal(refused[0])
    assert "model.init_from=runs/base does not fit the model" in refusal(refused[1])
    assert "model.init_from=resnet18.safetensors: " in refusal(refused[2])
    assert not (command.folder / "runs/none").exists()
    assert refused[3].returncode == 2
    verdict = json.loads(refused[3].stdout)["verdict"]
    assert verdict.startswith("would fail: model.init_from=gone.pth cannot be read")
    assert refused[4].returncode == 0
    assert json.loads(refused[4].stdout)["weights"][0].startswith("the file's head for 7 classes")
