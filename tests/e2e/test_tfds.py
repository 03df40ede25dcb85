"""A prepared data set of TensorFlow Datasets trains as the same images do from IDX files."""

from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow_datasets as tfds
from e2e.command import Command, read_metrics
from e2e.digits import TEST, TRAIN, first_digits
from tfds_sets import png, prepare

# A package of this name in front says when somebody imports it.
TENSORFLOW = "import sys; sys.stderr.write('tensorflow was imported\\n')\n"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits as `digits_records` and `digits_arrays`, one of each format, in two files."""
    folder = tmp_path_factory.mktemp("tfds")
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=(28, 28, 1)),
            "label": tfds.features.ClassLabel(num_classes=10),
        }
    )
    splits = {}
    for split, name, count in (("train", "train", TRAIN), ("test", "t10k", TEST)):
        images, labels = first_digits(name, count)
        pairs = zip(images, labels, strict=True)
        examples = [{"image": png(image), "label": int(label)} for image, label in pairs]
        splits[split] = [examples[: count // 3], examples[count // 3 :]]
    for name, file_format in (("digits_records", "tfrecord"), ("digits_arrays", "array_record")):
        prepare(folder / name / "1.0.0", file_format, splits, features)
    package = folder / "modules" / "tensorflow"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(TENSORFLOW)
    return folder


@pytest.fixture(scope="module")
def command(new_command: Callable[[], Command]) -> Command:
    made = new_command()
    made.result("train", "--config=digits.py", "--workdir=runs/idx")
    return made


@pytest.mark.parametrize("name", ["digits_records", "digits_arrays"])
def test_it_trains_and_evaluates_as_from_idx_files(
    command: Command, data_dir: Path, name: str
) -> None:
    place = ["--config.data.source=tfds", f"--config.data.name={name}"]
    words = ["--config=digits.py", *place, f"--config.data.path={data_dir}"]
    without = {"PYTHONPATH": str(data_dir / "modules")}
    done = command("train", *words, f"--workdir=runs/{name}", environment=without)
    assert done.returncode == 0, done.stderr
    assert "tensorflow" not in done.stderr
    expected = read_metrics(command.folder / "runs" / "idx")
    found = read_metrics(command.folder / "runs" / name)
    for one, other in zip(expected, found, strict=True):
        assert {**one, "time": 0, "images_per_second": 0} == {
            **other,
            "time": 0,
            "images_per_second": 0,
        }
    # The weights of the one run on the data of the other.
    swapped = command.result("eval", "--workdir=runs/idx", *place, f"--config.data.path={data_dir}")
    assert swapped["eval"] == command.result("eval", "--workdir=runs/idx")["eval"]


def test_a_part_of_a_split(command: Command, data_dir: Path) -> None:
    words = ["--config.data.source=tfds", "--config.data.name=digits_arrays"]
    run = [
        "train",
        "--config=digits.py",
        *words,
        f"--config.data.path={data_dir}",
        "--config.data.train_split=train[:80%]",
        "--config.data.eval_split=train[80%:]",
        "--workdir=runs/parts",
    ]
    summary = command.result(*run)
    assert summary["eval"]["split"] == "train[80%:]"
    assert summary["eval"]["count"] == 200
    again = command.result("eval", "--workdir=runs/parts")
    assert again["eval"] == summary["eval"]
    (written,) = (command.folder / "runs" / "parts" / "eval").iterdir()
    assert written.suffix == ".json"


def test_absent_data_names_the_folder_and_the_command(command: Command, data_dir: Path) -> None:
    message = command.refused(
        "train",
        "--config=digits.py",
        "--config.data.source=tfds",
        "--config.data.name=cifar10",
        f"--config.data.path={data_dir}",
    )
    assert str(data_dir / "cifar10") in message
    assert "data.download=true" in message
