"""`jaxtrain eval --hardest` from the command line."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e.command import Command, error, result, snapshot, together
from e2e.digits import first_digits
from PIL import Image

SMALL = ["--config.train.batch_size=24", "--config.train.steps=6", "--config.report.every_steps=0"]


@pytest.fixture(scope="module")
def command(new_command: Callable[..., Command]) -> Command:
    """A command beside a trained `run`, of an MLP on 200 digits of IDX files."""
    command = new_command(quickly=True)
    command.result("train", "--config=digits.py", "--workdir=run")
    return command


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def numbers(rows: list[dict[str, str]], column: str) -> np.ndarray:
    return np.array([float(row[column]) for row in rows])


def hardest(command: Command, *words: str, **options: Any) -> list[dict[str, str]]:
    """The table of a run's last step, which the result names."""
    done = command.result("eval", *words, **options)
    return rows_of(command.folder / done["hardest"]["table"])


def test_the_hardest_digits_by_loss(command: Command) -> None:
    done = command("eval", "--workdir=run", "--hardest=20", "--predictions=all.csv")
    said = result(done)
    table, picture = "run/eval/test-20-hardest-loss.csv", "run/eval/test-20-hardest-loss.png"
    expected = {"by": "loss", "count": 20, "table": table, "picture": picture}
    assert said["hardest"] == expected
    stored = json.loads((command.folder / "run/eval/test-20.json").read_text())
    assert (stored["hardest"], stored["eval"]) == (expected, said["eval"])
    for file in (table, picture):
        assert f"hardest examples: {file}\n" in done.stderr
    rows = rows_of(command.folder / table)
    losses = numbers(rows, "loss")
    assert [row["rank"] for row in rows] == [str(rank) for rank in range(1, 21)]
    assert (np.diff(losses) <= 0).all()
    assert losses[0] > said["eval"]["loss"]
    assert (numbers(rows, "gradient_norm") > 0).all()
    of_all = rows_of(command.folder / "all.csv")
    by_path = {row["path"]: row for row in of_all}
    for row in rows:
        same = by_path[row["path"]]
        assert (row["label"], row["class"]) == (same["label"], same["class"])
        assert float(row["probability"]) == pytest.approx(float(same["probability"]), abs=1e-5)
        if row["class"] == row["label"]:
            assert float(row["loss"]) == pytest.approx(-np.log(float(row["probability"])), abs=1e-4)
    with Image.open(command.folder / picture) as image:
        assert image.format == "PNG"
        assert image.width > 1000


def test_any_batch_and_number_of_devices_gives_the_same(command: Command) -> None:
    found: dict[str, list[list[dict[str, str]]]] = {"loss": [], "gradient": []}
    for devices, batch, cache in ((1, 200, "device"), (1, 7, "memory"), (8, 64, "device")):
        run = f"run-{devices}-{batch}"
        shutil.copytree(command.folder / "run", command.folder / run)
        keys = [f"--config.eval.batch_size={batch}", f"--config.data.cache={cache}"]
        words = ["eval", f"--workdir={run}", *keys, "--hardest=30"]
        calls = [[*words, f"--by={by}"] for by in found]
        for by, done in zip(found, command.in_turn(*calls, devices=devices), strict=True):
            found[by].append(rows_of(command.folder / result(done)["hardest"]["table"]))
    for first, *others in found.values():
        for other in others:
            assert [row["path"] for row in other] == [row["path"] for row in first]
            for column in ("loss", "gradient_norm"):
                np.testing.assert_allclose(
                    numbers(other, column), numbers(first, column), rtol=2e-5
                )
    by_loss = {row["path"]: float(row["gradient_norm"]) for row in found["loss"][0]}
    by_gradient = {row["path"]: float(row["gradient_norm"]) for row in found["gradient"][0]}
    assert list(by_gradient.values()) == sorted(by_gradient.values(), reverse=True)
    for path in by_loss.keys() & by_gradient.keys():
        assert by_gradient[path] == pytest.approx(by_loss[path], rel=2e-5)
    for path in by_loss.keys() - by_gradient.keys():
        assert by_loss[path] <= min(by_gradient.values()) * (1 + 2e-5)


def test_files_of_an_own_folder_are_named(command: Command) -> None:
    images, labels = first_digits("train", 60)
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        for split in ("train", "val"):
            folder = command.folder / "photos" / split / f"digit {label}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{index}.png")
    source = ["--config.data.source=folder", "--config.data.path=photos"]
    size = ["--config.data.image_size=28", "--config.data.channels=1"]
    network = ["--config.model.name=resnet8", "--config.model.resnet.width=0.25"]
    words = [*source, *size, *network, *SMALL, "--workdir=own"]
    command.result("train", "--config=digits.py", *words)
    rows = hardest(command, "--workdir=own", "--split=val", "--hardest=100", "--by=gradient")
    assert len(rows) == 60, "all that there are"
    assert all(row["path"].split("/")[-2] == row["label"] for row in rows)
    assert all((command.folder / row["path"]).is_file() for row in rows)
    assert {row["class"] for row in rows} <= {row["label"] for row in rows}


def test_features_have_a_table_alone(command: Command) -> None:
    random = np.random.RandomState(0)
    features = {name: random.normal(size=(50, 4)) for name in ("x_train", "x_test")}
    labels = {name: random.randint(0, 3, 50) for name in ("y_train", "y_test")}
    np.savez(command.folder / "blobs.npz", **features, **labels)
    source = ["--config.data.source=arrays", "--config.data.path=blobs.npz"]
    command.result("train", "--config=digits.py", *source, *SMALL, "--workdir=blobs")
    done = command("eval", "--workdir=blobs", "--hardest=3")
    table = "blobs/eval/test-6-hardest-loss.csv"
    assert result(done)["hardest"] == {"by": "loss", "count": 3, "table": table}
    assert "hardest examples: no picture, as they are no images\n" in done.stderr
    assert [row["path"][:5] for row in rows_of(command.folder / table)] == ["test["] * 3


def test_an_exported_model_has_losses_alone(command: Command) -> None:
    command.result("export", "--workdir=run", "--format=stablehlo", "--output=out")
    before = snapshot(command.folder)
    refused = command.refused(
        "eval", "--workdir=run", "--exported=out", "--hardest=5", "--by=gradient"
    )
    assert refused == (
        "--by=gradient needs the gradients of a checkpoint, and --exported=out has none: drop one"
    )
    assert snapshot(command.folder) == before
    exported, own = together(
        lambda: hardest(command, "--workdir=run", "--exported=out", "--hardest=5"),
        lambda: hardest(command, "--workdir=run", "--hardest=5"),
    )
    assert [row["path"] for row in exported] == [row["path"] for row in own]
    assert [row["gradient_norm"] for row in exported] == [""] * 5
    assert (command.folder / "run/eval/test-20-stablehlo-hardest-loss.png").is_file()


def test_another_runs_checkpoint_is_refused_before_the_work(command: Command) -> None:
    command.result("train", "--config=digits.py", *SMALL, "--workdir=other")
    checkpoint = command.folder / "other/checkpoints/6"
    done = command("eval", "--workdir=run", f"--checkpoint={checkpoint}", "--hardest=5")
    assert error(done, 2) == (
        f"--hardest=5 is kept in run, but {checkpoint} is not its own; give the --workdir of its "
        "run"
    )
    assert "evaluating" not in done.stderr
