"""Data that must not be trained on."""

import gzip
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from e2e.command import Command, refusal, snapshot
from e2e.digits import first_digits, idx_bytes, write_split

Damage = Callable[[Path], None]

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def edit(name: str, change: Callable[[bytes], bytes]) -> Damage:
    """Changes the content of a file."""

    def damage(folder: Path) -> None:
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return damage


def label(value: int, dtype: type = np.uint8) -> Damage:
    """Makes the label at index 7 of the training split another one."""

    def damage(folder: Path) -> None:
        labels = first_digits("train", 1000)[1].astype(dtype)
        labels[7] = value
        (folder / LABELS).write_bytes(idx_bytes(labels))

    return damage


def cut(size: int) -> Damage:
    """Leaves only the first examples of the training split."""
    return lambda folder: write_split(folder, "train", *first_digits("train", size))


def cut_gzip(folder: Path) -> None:
    (folder / IMAGES).write_bytes(gzip.compress((folder / IMAGES).read_bytes())[:-100])


CASES: dict[str, tuple[Damage, str]] = {
    "label_-1": (
        label(-1, np.int8),
        r"train-labels\S*: label -1 at index 7 of split train is outside 0\.\.9",
    ),
    "label_255": (label(255), r"train-labels\S*: the largest label 255 \(at index 7, 1 times\)"),
    "label_255_of_10_classes": (
        label(255),
        r"label 255 at index 7 of split train is outside 0\.\.9",
    ),
    "header": (
        edit(IMAGES, lambda content: b"\0\0\x09\x03" + content[4:]),
        r"train-images\S* is not an IDX file of images: it starts with 00000903",
    ),
    "short": (
        edit(IMAGES, lambda content: content[:-1]),
        r"train-images\S* is short: 784015 bytes, .* needs 784016",
    ),
    "gzip": (cut_gzip, r"train-images\S* is damaged gzip"),
    "empty": (cut(0), r"train-images\S* is empty"),
    "smaller_than_a_batch": (
        cut(39),
        r"train\.batch_size=40 is larger than the 39 training examples",
    ),
    "no_file": (lambda folder: (folder / "t10k-labels-idx1-ubyte").unlink(), r"has no test labels"),
}


@pytest.fixture(scope="module")
def messages(new_command: Callable[[], Command], digits: Path) -> dict[str, str]:
    """What is said in each case, where nothing may be written."""
    command = new_command()
    calls = []
    for name, (damage, _) in CASES.items():
        data = command.folder / f"data-{name}"
        shutil.copytree(digits, data)
        damage(data)
        calls.append(["train", "--config=digits.py", f"--config.data.path={data}"])
        if name.endswith("of_10_classes"):
            calls[-1].append("--config.data.num_classes=10")
    said = map(refusal, command.in_turn(*calls))
    there = {path.name for path in command.folder.iterdir()}
    assert there == {"digits.py", *(f"data-{name}" for name in CASES)}
    return dict(zip(CASES, said, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_bad_data_is_refused(messages: dict[str, str], name: str) -> None:
    assert re.search(CASES[name][1], messages[name]), messages[name]


def test_data_that_changed_since_the_run_began(command: Command, digits: Path) -> None:
    """It is refused before anything in the run's folder changes."""
    words = ["train", "--config=digits.py", "--workdir=run"]
    longer = [*words, "--config.train.steps=30", "--extend"]
    command.result(*words)
    before = snapshot(command.folder / "run")
    for split, name in (("train", "train"), ("t10k", "eval")):
        data = command.folder / split
        shutil.copytree(digits, data)
        edit(f"{split}-images-idx3-ubyte", lambda content: content[:-1] + b"\x01")(data)
        message = command.refused(*longer, f"--config.data.path={data}")
        assert f"the {name} split has changed since the run in run began" in message
        assert snapshot(command.folder / "run") == before
    assert command.result(*longer)["step"] == 30
