"""`jaxtrain check --preview` from the command line."""

import json
from pathlib import Path

import numpy as np
from e2e.command import Command, error, result, together
from PIL import Image

CHECK = ("check", "--config=digits.py")
AUGMENT = "--config.data.augment=affine(rotate=15, translate=0.1)|pad_crop(2)|cutout(8)"


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return np.asarray(picture)


def test_pictures_of_a_batch(command: Command) -> None:
    folder = command.folder
    before = set(folder.iterdir())
    augmented, again, later, plain = together(
        lambda: command(*CHECK, AUGMENT, "--preview=first.png"),
        lambda: command(*CHECK, AUGMENT, "--preview=again.png", devices=4),
        lambda: command(*CHECK, AUGMENT, "--preview", "later.PNG", "--batch=2", "--json"),
        lambda: command(*CHECK, "--preview=plain.png", "--print_config"),
    )
    said = "first.png: 28 examples of step 1, before and after data.augment=affine(rotate=15, "
    assert said in augmented.stdout
    assert augmented.stdout.splitlines()[-1].startswith("verdict     ok: ")
    assert again.returncode == 0
    assert "plain.png: 40 examples of step 1, unchanged: data.augment is empty" in plain.stdout
    report = result(later)
    assert report["preview"] == {
        "file": "later.PNG",
        "step": 2,
        "examples": 28,
        "changes": [AUGMENT.removeprefix("--config.")],
    }
    assert len(report["batch"]["indices"]) == 40
    names = ("first.png", "again.png", "later.PNG", "plain.png")
    assert set(folder.iterdir()) - before == {folder / name for name in names}
    first = pixels(folder / "first.png")
    assert abs(first.astype(int) - pixels(folder / "again.png")).max() <= 1
    assert (first != pixels(folder / "later.PNG")).any()
    assert len(np.unique(first)) > 50


def test_what_cannot_be_drawn_is_refused(command: Command) -> None:
    (command.folder / "folder.png").mkdir()
    before = sorted(command.folder.rglob("*"))
    suffix, missing, folder, step, failing = together(
        lambda: command.refused(*CHECK, "--preview=first.jpg"),
        lambda: command.refused(*CHECK, "--preview=nowhere/first.png"),
        lambda: command.refused(*CHECK, "--preview=folder.png"),
        lambda: command(*CHECK, "--preview=first.png", "--batch=21"),
        lambda: command(*CHECK, "--preview=first.png", "--config.data.augment=saturation(1)"),
    )
    assert suffix == "--preview=first.jpg must be a file that ends in .png"
    assert missing == "--preview=nowhere/first.png: there is no folder nowhere; make it first"
    assert folder == "--preview=folder.png is a folder; give a file in it"
    assert error(step, 2) == "--batch=21 is outside the run's steps 1..20"
    assert failing.returncode == 2
    assert "would fail: data.augment: saturation: needs 3 channels" in failing.stdout
    assert sorted(command.folder.rglob("*")) == before


def test_a_failing_run_has_no_preview_in_its_report(command: Command) -> None:
    done = command(*CHECK, "--preview=a.png", "--json", "--config.data.augment=flop")
    assert done.returncode == 2
    assert "preview" not in json.loads(done.stdout)
    assert not (command.folder / "a.png").exists()
