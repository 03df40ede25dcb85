"""Arrays of features through the command: trained, resumed, evaluated, exported, predicted with."""

import csv
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e.command import Command, read_arrays, read_metrics, result, together
from e2e.digits import TEST, TRAIN, first_digits

from jaxtrain import checkpoint
from jaxtrain.data.sampler import holdout_rows
from jaxtrain.formats import FORMATS

RECIPE = """
from jaxtrain.config import base_config

def get_config():
    config = base_config()
    config.data.source = "arrays"
    config.data.standardize = True
    config.model.mlp.hidden_sizes = (16,)
    config.model.mlp.dropout = 0.1
    config.optimizer.learning_rate = 0.02
    config.train.batch_size = 32
    config.train.steps = 60
    config.report.every_steps = 20
    return config
"""
# Their sizes differ as those of people's features do, and one says nothing.
SCALE, OFFSET = np.array([1, 1e-4, 3e4, 0]), np.array([0, 1e-3, -1e5, 7])
NAMES = np.array(["setosa", "versicolor", "virginica"])
BLOBS = ["--config=features.py", "--config.data.path=blobs.npz", "--config.data.holdout=40"]
FLOWERS = ["--config=features.py", "--config.data.path=flowers", "--config.train.batch_size=24"]


def blobs(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Features float64 `[size, 4]` of three noisy blobs, and whose each is."""
    random = np.random.RandomState(seed)
    labels = random.randint(0, 3, size)
    middles = np.array([[0, 0, 2, 0], [2, 0, 0, 0], [0, 2, 0, 0]])
    return OFFSET + SCALE * (middles[labels] + random.normal(0, 0.5, (size, 4))), labels


@pytest.fixture(scope="module")
def command(new_command: Callable[[], Command]) -> Command:
    """A command beside blobs in a file, and flowers of which the split is not said in a folder."""
    command = new_command()
    (command.folder / "features.py").write_text(RECIPE)
    train, test = blobs(240, seed=0), blobs(90, seed=1)
    np.savez(
        command.folder / "blobs.npz",
        x_train=train[0],
        y_train=NAMES[train[1]],
        x_test=test[0],
        y_test=NAMES[test[1]],
    )
    features, labels = blobs(150, seed=2)
    (command.folder / "flowers").mkdir()
    np.save(command.folder / "flowers" / "data.npy", np.float32(features))
    np.save(command.folder / "flowers" / "target.npy", np.eye(3)[labels])
    return command


@pytest.fixture(scope="module")
def trained(command: Command) -> dict[str, Any]:
    return command.result("train", *BLOBS, "--workdir=run")


@pytest.fixture(scope="module")
def evaluated(command: Command, trained: dict[str, Any]) -> dict[str, Any]:
    """The test split's metrics; its predictions are in `test.csv`."""
    assert trained["status"] == "finished"
    words = ["--workdir=run", "--split=test", "--predictions=test.csv"]
    return command.result("eval", *words)["eval"]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_features_are_learnt_whatever_their_sizes(
    trained: dict[str, Any], evaluated: dict[str, Any]
) -> None:
    assert trained["eval"]["split"] == "holdout"
    assert trained["eval"]["count"] == 40
    assert evaluated["count"] == 90
    assert evaluated["accuracy"] > 0.9


def test_each_checkpoint_has_the_statistics_of_what_was_trained_on(
    command: Command, trained: dict[str, Any]
) -> None:
    kept, _ = holdout_rows(240, 40)
    seen = blobs(240, seed=0)[0][kept].astype(np.float32).astype(np.float64)
    for step in checkpoint.list_steps(command.folder / "run" / "checkpoints"):
        meta = checkpoint.read_meta(command.folder / "run" / "checkpoints", step)
        assert meta["image_shape"] == [4]
        assert meta["class_names"] == NAMES.tolist()
        np.testing.assert_allclose(meta["statistics"]["mean"], seen.mean(0), rtol=1e-12)
        np.testing.assert_allclose(meta["statistics"]["std"][:3], seen.std(0)[:3], rtol=1e-12)
        assert meta["statistics"]["std"][3] == 1
    assert trained["step"] == step


def test_prediction_needs_no_data_of_the_run(
    command: Command, new_command: Callable[[], Command], evaluated: dict[str, Any]
) -> None:
    elsewhere = new_command()
    features, labels = blobs(90, seed=1)
    np.save(elsewhere.folder / "rows.npy", features)
    words = ["rows.npy", f"--workdir={command.folder / 'run'}", "--output=rows.csv"]
    assert elsewhere.result("predict", *words)["count"] == 90
    found, expected = rows_of(elsewhere.folder / "rows.csv"), rows_of(command.folder / "test.csv")
    assert [row["label"] for row in expected] == NAMES[labels].tolist()
    assert [row["class"] for row in found] == [row["class"] for row in expected]
    np.testing.assert_allclose(
        *([float(row["probability"]) for row in rows] for rows in (found, expected)), rtol=1e-5
    )
    right = np.mean([row["class"] == row["label"] for row in expected])
    assert right == pytest.approx(evaluated["accuracy"])
    np.save(elsewhere.folder / "bad.npy", [features[0], [0, 0, np.nan, 0]])
    done = elsewhere("predict", "bad.npy", f"--workdir={command.folder / 'run'}")
    assert done.returncode == 3
    good, bad = list(csv.DictReader(done.stdout.splitlines()))
    assert good["class"] == found[0]["class"]
    assert bad["error"] == "feature 2 is nan, which is no finite float32"


def test_other_data_may_lack_a_class(command: Command, trained: dict[str, Any]) -> None:
    assert trained["status"] == "finished"
    features, labels = blobs(90, seed=1)
    some = labels > 0
    np.savez(command.folder / "some.npz", X_test=features[some], y_test=NAMES[labels[some]])
    words = ["--workdir=run", "--config.data.path=some.npz", "--split=test"]
    assert command.result("eval", *words)["eval"]["accuracy"] > 0.85


def test_every_export_scores_as_the_checkpoint(command: Command, evaluated: dict[str, Any]) -> None:
    words = ["--workdir=run", f"--format={','.join(FORMATS)}", "--output=exports"]
    exports = command.result("export", *words)["exports"]
    assert [each["format"] for each in exports] == list(FORMATS)
    words = ["--workdir=run", "--split=test"]
    scored = together(
        *(
            functools.partial(command.result, "eval", *words, f"--exported=exports/{name}")
            for name in FORMATS
        )
    )
    for each in scored:
        assert each["eval"]["accuracy"] == evaluated["accuracy"]
        assert each["eval"]["loss"] == pytest.approx(evaluated["loss"], rel=1e-5)
    features, _ = blobs(90, seed=1)
    np.save(command.folder / "rows.npy", np.float32(features))
    words = ["rows.npy", "--exported=exports/onnx", "--output=exported.csv"]
    assert command.result("predict", *words)["count"] == 90
    found, expected = (rows_of(command.folder / name) for name in ("exported.csv", "test.csv"))
    assert [row["class"] for row in found] == [row["class"] for row in expected]


def test_a_run_that_goes_on_and_one_on_eight_devices_are_the_same(command: Command) -> None:
    """In host memory, of which the last batch of an evaluation is padded."""
    words = [*FLOWERS, "--config.data.cache=memory", "--config.data.val_share=0.2"]
    finished, spread, _ = together(
        functools.partial(command, "train", *words, "--workdir=flowers-1"),
        functools.partial(command.result, "train", *words, "--workdir=flowers-8", devices=8),
        functools.partial(
            command.result, "train", *words, "--workdir=short", "--config.train.steps=35"
        ),
    )
    command.result("train", *words, "--workdir=short", "--extend")
    whole = result(finished)
    assert " examples/s" in finished.stderr
    assert " images" not in finished.stderr
    assert whole["eval"]["split"] == "val"
    assert whole["eval"]["accuracy"] > 0.9
    assert spread["eval"]["loss"] == pytest.approx(whole["eval"]["loss"], rel=1e-4)
    one, other = (read_arrays(command.folder / name) for name in ("flowers-1", "short"))
    assert one.keys() == other.keys()
    for name, leaf in one.items():
        np.testing.assert_array_equal(leaf, other[name], err_msg=name)
    folder = command.folder
    metas = [
        checkpoint.read_meta(folder / name / "checkpoints", 60)
        for name in ("flowers-1", "short", "flowers-8")
    ]
    assert metas[0]["statistics"] == metas[1]["statistics"] == metas[2]["statistics"]
    (last,) = (
        e for e in read_metrics(folder / "flowers-8") if (e["step"], e["split"]) == (60, "val")
    )
    assert last["count"] == whole["eval"]["count"]


def test_images_train_as_from_any_other_source(command: Command) -> None:
    parts = {"train": first_digits("train", TRAIN), "test": first_digits("t10k", TEST)}
    arrays = {f"{split}_images": images for split, (images, _) in parts.items()}
    arrays |= {f"{split}_labels": labels[:, np.newaxis] for split, (_, labels) in parts.items()}
    np.savez_compressed(command.folder / "digits.npz", **arrays)
    words = ["--config=digits.py", "--config.eval.every_epochs=0"]
    own = ["--config.data.source=arrays", "--config.data.path=digits.npz"]
    one, other = together(
        functools.partial(command.result, "train", *words, "--workdir=digits-1"),
        functools.partial(command.result, "train", *words, *own, "--workdir=digits-2"),
    )
    assert one["eval"] == other["eval"]


def test_what_features_are_not_for_is_said(command: Command) -> None:
    said = command.refused("train", *FLOWERS, "--config.model.name=resnet18")
    assert said == "model.name: a ResNet takes images, but an example is 4 features; set " + (
        "model.name=mlp"
    )
    done = command("check", *FLOWERS, "--preview=a.png")
    assert done.returncode == 2
    assert "--preview=a.png shows images, but an example is 4 features; leave it out" in done.stderr
    done = command("check", *FLOWERS)
    assert done.returncode == 0
    assert "; 4 features; 3 classes" in done.stdout
    assert " image" not in done.stdout
