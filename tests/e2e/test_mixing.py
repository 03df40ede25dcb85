"""Training on mixed images, through the command."""

import json
import shutil
from functools import partial

import numpy as np
import pytest
from e2e.command import Command, read_arrays, read_metrics, saved_steps, together

WORDS = [
    "--config=digits.py",
    "--config.data.source=synthetic",
    "--config.data.path=None",
    "--config.data.synthetic.image_shape=8,8,3",
    "--config.data.synthetic.examples=64",
    "--config.data.augment=flip|mixup_or_cutmix(mixup=0.4, p=0.8)",
    "--config.data.class_weights=balanced",
    "--config.train.label_smoothing=0.1",
    "--config.train.batch_size=32",
    "--config.train.steps=40",
    "--config.report.every_steps=5",
    "--config.checkpoint.every_steps=22",
    "--config.optimizer.learning_rate=0.01",
]


def test_a_run_learns_resumes_exactly_and_is_the_same_on_devices(command: Command) -> None:
    """Exactly on one device, with whose numbers others agree."""
    runs = command.folder / "runs"
    (whole, *_) = together(
        partial(command.result, "train", *WORDS, "--workdir=runs/one"),
        partial(command.result, "train", *WORDS, "--workdir=runs/eight", devices=8),
        partial(
            command.result,
            "train",
            *WORDS,
            "--config.train.accumulate=2",
            "--config.parallel.mode=pmap",
            "--workdir=runs/parts",
            devices=2,
        ),
    )
    expected = [event["loss"] for event in read_metrics(runs / "one")]
    for name in ("eight", "parts"):
        losses = [event["loss"] for event in read_metrics(runs / name)]
        assert losses == pytest.approx(expected, rel=1e-3)
    # Evaluation mixes and smooths nothing, so what was learnt shows there.
    assert whole["eval"]["accuracy"] > 0.5
    assert whole["eval"]["loss"] < whole["train"]["loss"]

    again = runs / "again"
    shutil.copytree(runs / "one", again)
    (again / "result.json").unlink()
    shutil.rmtree(again / "checkpoints" / "40")
    command.result("train", "--workdir=runs/again")
    assert saved_steps(again) == [22, 40]
    found = read_arrays(again)
    for name, array in read_arrays(runs / "one").items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert json.loads((again / "result.json").read_text())["eval"] == whole["eval"]


def test_a_batch_without_whole_pairs_is_refused(command: Command) -> None:
    done = command.refused("train", *WORDS, "--config.train.accumulate=3", devices=2)
    assert done == (
        "train.batch_size=32 does not divide over 2 devices and train.accumulate=3 parts and pairs "
        "of rows, which data.augment mixes; try 24 or 36"
    )
