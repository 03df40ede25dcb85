"""Folders and lists of image files through the command, from training to prediction."""

import csv
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e.command import Command, error, read_arrays, saved_steps, together
from e2e.digits import first_digits
from image_files import write_half_jpeg
from PIL import Image

# Without loss.
SUFFIXES = ("png", "bmp", "TIFF", "gif", "png")
RECIPE = [
    "--config=digits.py",
    "--config.data.channels=1",
    "--config.data.augment=affine(rotate=10)",
    "--config.train.steps=12",
    "--config.train.batch_size=24",
    "--config.eval.every_epochs=0",
    "--config.checkpoint.every_steps=6",
]
FOLDER = ["--config.data.source=folder", "--config.data.path=digits"]
SIZED = ["--config.data.image_size=28"]
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@pytest.fixture(scope="module")
def command(new_command: Callable[[], Command]) -> Command:
    """A command beside `digits`, 300 digits in a folder for each class, in several formats."""
    command = new_command()
    images, labels = first_digits("train", 300)
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        folder = command.folder / "digits" / NAMES[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{index}.{SUFFIXES[index % len(SUFFIXES)]}")
    (command.folder / "digits/notes.txt").write_text("no image")
    return command


@pytest.fixture(scope="module")
def trained(command: Command) -> Path:
    done = command("train", *RECIPE, *FOLDER, *SIZED, "--workdir=runs/folder")
    assert done.returncode == 0, done.stderr
    assert "left out: 1 .txt, no images by their names" in done.stderr
    assert "classes  0 eight, 1 five, 2 four, 3 nine, 4 one" in done.stderr
    return command.folder / "runs/folder"


def evaluated(command: Command, *words: str) -> dict[str, Any]:
    return command.result("eval", "--workdir=runs/folder", *words)


def test_the_numbers_of_training_are_those_of_evaluation(command: Command, trained: Path) -> None:
    result = json.loads((trained / "result.json").read_text())
    again = evaluated(command)
    assert again["eval"] == result["eval"]
    assert again["eval"]["split"] == "val"
    whole = evaluated(command, "--split=train+val")
    assert whole["eval"]["count"] == 300
    assert json.loads((trained / "classes.json").read_text()) == sorted(NAMES)


def test_predictions_name_files_and_predict_agrees(command: Command, trained: Path) -> None:
    evaluated(command, "--predictions=val.csv")
    with (command.folder / "val.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(row["path"].split("/")[1] == row["label"] for row in rows)
    paths = [row["path"] for row in rows]
    done = command("predict", "--workdir=runs/folder", "--output=again.csv", *paths)
    assert done.returncode == 0, done.stderr
    with (command.folder / "again.csv").open(newline="") as file:
        again = list(csv.DictReader(file))
    assert [row["class"] for row in again] == [row["class"] for row in rows]
    assert np.allclose(
        [float(row["probability"]) for row in again],
        [float(row["probability"]) for row in rows],
        rtol=0,
        atol=5e-6,
    )


def test_a_resumed_run_and_one_from_a_list_end_bit_for_bit_the_same(
    command: Command, trained: Path
) -> None:
    again = command.folder / "runs/again"
    shutil.copytree(trained, again)
    (again / "result.json").unlink()
    shutil.rmtree(again / "checkpoints/12")
    evaluated(command, "--predictions=val.csv")
    evaluated(command, "--split=train", "--predictions=train.csv")
    with (command.folder / "digits/list.csv").open("w", newline="") as file:
        rows = csv.writer(file, delimiter=";")
        rows.writerow(["file", "split", "class"])
        for split in ("train", "val"):
            with (command.folder / f"{split}.csv").open(newline="") as found:
                for row in csv.DictReader(found):
                    rows.writerow([row["path"].removeprefix("digits/"), split, row["label"]])
    columns = ["--config.data.path_column=file", "--config.data.label_column=class"]
    source = ["--config.data.source=csv", "--config.data.path=digits/list.csv"]
    together(
        partial(command.result, "train", "--workdir=runs/again"),
        partial(command.result, "train", *RECIPE, *source, *columns, *SIZED, "--workdir=runs/list"),
    )
    assert saved_steps(again) == [6, 12]
    expected = read_arrays(trained)
    for other in (again, command.folder / "runs/list"):
        found = read_arrays(other)
        assert set(found) == set(expected)
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_a_crop_of_files_is_another_one_at_each_step(command: Command) -> None:
    """And the same on another start, on several devices, from files of many sizes."""
    crop = ["--config.data.image_size=20", "--config.data.crop=random_resized(0.3)"]
    both = together(
        partial(command.result, "train", *RECIPE, *FOLDER, *crop, "--workdir=runs/crop"),
        partial(
            command.result,
            *("train", *RECIPE, *FOLDER, *crop, "--workdir=runs/crop4"),
            devices=4,
        ),
    )
    assert both[0]["train"]["loss"] == pytest.approx(both[1]["train"]["loss"], rel=1e-4)


def test_bad_files(command: Command, new_command: Callable[[], Command]) -> None:
    """The default stops and names the file; `skip` leaves it out, and every count says so."""
    own = new_command()
    shutil.copytree(command.folder / "digits", own.folder / "digits")
    write_half_jpeg(own.folder / "digits/one/half.jpg")
    (own.folder / "digits/two/empty.png").touch()
    (own.folder / "digits/two/text.gif").write_text("text")
    run = ["train", *RECIPE, *FOLDER, *SIZED, "--config.data.val_share=0.3"]
    said = error(own(*run, "--workdir=runs/error"), status=3)
    assert "digits/" in said
    assert "set data.on_bad_file=skip" in said
    for _ in range(2):  # what the first scan found changes nothing for what opens the data next
        scan = own("check", *run[1:], "--scan", "--json")
        assert scan.returncode == 3
        report = json.loads(scan.stdout)
        assert sorted(Path(bad["place"]).name for bad in report["scan"]["bad"]) == [
            "empty.png",
            "half.jpg",
            "text.gif",
        ]
        assert report["verdict"].startswith("would fail: 3 of 303 examples cannot be decoded")
    assert "digits/" in error(own(*run, "--workdir=runs/error"), status=3)
    # The run that has saved nothing may go on otherwise.
    own.result(*run, "--config.data.on_bad_file=skip", "--workdir=runs/error")
    listed = json.loads((own.folder / "runs/error/left_out.json").read_text())
    assert sorted(Path(file).name for files in listed.values() for file in files) == [
        "empty.png",
        "half.jpg",
        "text.gif",
    ]
    whole = own.result("eval", "--workdir=runs/error", "--split=train+val")
    assert whole["eval"]["count"] == 300
    assert whole["eval"]["left_out"] == 3
