"""ResNets, augmentation, microbatches and calls of several steps, through the command."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from e2e.command import (
    Command,
    read_arrays,
    read_metrics,
    refusal,
    result,
    saved_steps,
    together,
)
from e2e.digits import first_digits, write_split

RESNET = [
    "--config=digits.py",
    "--config.model.name=resnet8",
    "--config.model.resnet.width=0.25",
    "--config.model.resnet.dropout=0.2",
    "--config.model.resnet.stochastic_depth=0.2",
    "--config.data.augment=affine(rotate=10, translate=0.1)|cutout(6)|noise(0.05)",
    "--config.data.mean=0.13",
    "--config.data.std=0.31",
    "--config.train.accumulate=2",
    "--config.train.label_smoothing=0.1",
    "--config.data.class_weights=balanced",
    "--config.train.batch_size=16",
    "--config.train.steps=8",
    "--config.report.every_steps=3",
    "--config.checkpoint.every_steps=5",
    "--config.eval.every_epochs=0",
]


@pytest.fixture(scope="module")
def command(new_command: Callable[..., Command]) -> Command:
    return new_command(quickly=True)


@pytest.fixture(scope="module")
def trained(command: Command) -> Path:
    """The folder of a ResNet's run on one device, whose result is kept beside it."""
    summary = command.result("train", *RESNET, "--workdir=runs/resnet")
    assert summary["step"] == 8
    return command.folder / "runs" / "resnet"


def test_evaluation_gives_the_numbers_of_training(command: Command, trained: Path) -> None:
    expected = json.loads((trained / "result.json").read_text())["eval"]
    words = ["eval", "--workdir=runs/resnet"]
    again, other = map(
        result,
        command.in_turn(*([*words, f"--config.eval.batch_size={size}"] for size in (1000, 7))),
    )
    assert again["eval"] == expected
    assert other["eval"]["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    assert other["eval"]["accuracy"] == expected["accuracy"]


def test_a_resumed_resnet_ends_bit_for_bit_the_same(command: Command, trained: Path) -> None:
    again = command.folder / "runs" / "again"
    shutil.copytree(trained, again)
    (again / "result.json").unlink()
    shutil.rmtree(again / "checkpoints" / "8")
    command.result("train", "--workdir=runs/again")
    assert saved_steps(again) == [5, 8]
    expected = read_arrays(trained)
    found = read_arrays(again)
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    for one, other in zip(read_metrics(trained), read_metrics(again), strict=True):
        for name in ("step", "split", "loss", "accuracy"):
            assert one[name] == other[name]


def test_devices_and_places_of_the_data_change_rounding_only(
    command: Command, trained: Path
) -> None:
    together(
        partial(command.result, "train", *RESNET, "--workdir=runs/8", devices=8),
        partial(
            command.result, "train", *RESNET, "--config.data.cache=memory", "--workdir=runs/host"
        ),
    )
    expected = read_metrics(trained)
    for name, tolerance in (("8", 1e-3), ("host", 0)):
        for one, other in zip(expected, read_metrics(command.folder / "runs" / name), strict=True):
            assert (one["step"], one["split"]) == (other["step"], other["split"])
            assert one["loss"] == pytest.approx(other["loss"], rel=tolerance)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_trains(command: Command, trained: Path, dtype: str) -> None:
    words = [*RESNET, f"--config.model.dtype={dtype}", f"--workdir=runs/{dtype}"]
    summary = command.result("train", *words)
    exact = json.loads((trained / "result.json").read_text())
    assert summary["train"]["loss"] == pytest.approx(exact["train"]["loss"], rel=0.05)
    arrays = read_arrays(command.folder / "runs" / dtype)
    halves = [name for name, array in arrays.items() if array.dtype.itemsize == 2]
    assert not halves
    if dtype == "float16":
        (scale,) = [array for name, array in arrays.items() if "scale']['scale" in name]
        assert 2.0**6 < scale <= 2.0**16


def test_calls_of_any_length_give_the_same_bits(new_command: Callable[..., Command]) -> None:
    """Compiled as users do."""
    command = new_command()
    words = ["--config=digits.py", "--config.train.steps=23", "--config.report.every_steps=7"]
    together(
        *(
            partial(
                command.result,
                "train",
                *words,
                f"--config.train.steps_per_call={n}",
                f"--workdir=runs/{n}calls",
            )
            for n in (1, 4, 10)
        )
    )
    folders = [command.folder / "runs" / f"{n}calls" for n in (1, 4, 10)]
    expected = read_arrays(folders[0])
    for folder in folders[1:]:
        for name, array in read_arrays(folder).items():
            np.testing.assert_array_equal(expected[name], array, err_msg=name)
        for one, other in zip(read_metrics(folders[0]), read_metrics(folder), strict=True):
            assert (one["step"], one["loss"]) == (other["step"], other["loss"])


def test_synthetic_data_trains(command: Command) -> None:
    words = [
        "--config=digits.py",
        "--config.data.path=None",
        "--config.data.source=synthetic",
        "--config.data.synthetic.image_shape=8,6,3",
        "--config.data.num_classes=3",
        "--workdir=runs/synthetic",
    ]
    summary = command.result("train", *words)
    assert summary["eval"]["count"] == 256
    assert summary["train"]["loss"] < read_metrics(command.folder / "runs/synthetic")[0]["loss"]


REFUSED = [
    (
        ["--config.model.name=resnet8", "--config.train.steps_per_call=5"],
        "train.steps_per_call=5 makes convolutions many times slower on CPU devices; set "
        "train.steps_per_call=1",
    ),
    (
        ["--config.data.cache=memory", "--config.train.steps_per_call=5"],
        "train.steps_per_call=5 needs the examples on the devices; set data.cache=device, or "
        "train.steps_per_call=1",
    ),
    (
        ["--config.train.accumulate=3"],
        "train.batch_size=40 does not divide over train.accumulate=3 parts; try 39 or 42",
    ),
    (["--config.model.name=resnet19"], "did you mean 'resnet18'?"),
    (["--config.data.mean=0.1,0.2"], "but images have 1 channels"),
    (["--config.data.class_weights=1,2"], "must be balanced, or 10 numbers of 0 to 1e6"),
    (["--config.data.augment=flop"], "did you mean 'flip'?"),
    (["--config.data.augment=saturation(0.2)"], "data.augment"),
    (["--config.data.crop=random_resized(2,3)"], "data.crop"),
    (["--config.data.source=tfds"], "data.name"),
    (["--config.data.eval_image_size=20"], "data.eval_image_size: the model has other parameters"),
]


def test_what_cannot_be_is_refused(command: Command) -> None:
    done = command.in_turn(
        *(["train", "--config=digits.py", *words, "--workdir=runs/none"] for words, _ in REFUSED)
    )
    for each, (_, said) in zip(done, REFUSED, strict=True):
        assert said in refusal(each)
    assert not (command.folder / "runs" / "none").exists()


CROPS = [
    "--config=digits.py",
    "--config.data.path=None",
    "--config.data.source=synthetic",
    "--config.data.synthetic.image_shape=12,10,3",
    "--config.data.synthetic.examples=200",
    "--config.data.image_size=8,6",
    "--config.data.crop=random_resized(0.2, 0.9)",
    "--config.data.eval_crop=0.8",
    "--config.data.augment=flip|brightness(0.2)",
    "--config.train.steps=12",
    "--config.checkpoint.every_steps=5",
]


def test_random_crops_do_not_depend_on_threads_devices_or_stops(command: Command) -> None:
    one, spread, again = (command.folder / "runs" / name for name in ("crops", "crops8", "crops5"))
    together(
        partial(command.result, "train", *CROPS, "--workdir=runs/crops"),
        partial(
            command.result,
            "train",
            *CROPS,
            "--config.data.threads=5",
            "--workdir=runs/crops8",
            devices=8,
        ),
    )
    expected = read_arrays(one)
    for name, array in read_arrays(spread).items():
        np.testing.assert_allclose(expected[name], array, rtol=1e-3, atol=1e-4, err_msg=name)
    shutil.copytree(one, again)
    (again / "result.json").unlink()
    for step in ("10", "12"):
        shutil.rmtree(again / "checkpoints" / step)
    command.result("train", "--workdir=runs/crops5", "--config.data.threads=1")
    for name, array in read_arrays(again).items():
        np.testing.assert_array_equal(expected[name], array, err_msg=name)
    result = json.loads((one / "result.json").read_text())
    assert command.result("eval", "--workdir=runs/crops")["eval"] == result["eval"]


def test_other_data_is_brought_to_the_size_of_training(command: Command, trained: Path) -> None:
    digits = [f"--config.data.path={command.folder}/small"]
    images, labels = first_digits("t10k", 50)
    write_split(command.folder / "small", "t10k", images[:, ::2, ::2], labels)
    found = command.result("eval", "--workdir=runs/resnet", *digits)
    assert found["eval"]["count"] == 50
    names = [path.name for path in (trained / "eval").iterdir()]
    assert [name for name in names if len(name) > len("test-8.json")], names
    other = ["--config.data.source=synthetic", "--config.data.path=None"]
    message = command.refused("eval", "--workdir=runs/resnet", *other)
    assert "has images of 3 channels, but the model was trained on images of 1" in message
    assert trained.exists()


def test_images_are_evaluated_at_a_size_of_their_own(command: Command) -> None:
    """In training, in evaluation, in prediction and in exports alike."""
    sizes = ["--config.data.image_size=12", "--config.data.eval_image_size=16"]
    words = [*RESNET, *sizes, "--config.train.steps=2", "--workdir=runs/sizes"]
    trained = command.result("train", *words)
    assert command.result("eval", "--workdir=runs/sizes")["eval"] == trained["eval"]
    command.result("export", "--workdir=runs/sizes", "--format=stablehlo", "--output=sized")
    scored = command.result("eval", "--workdir=runs/sizes", "--exported=sized")
    assert scored["eval"]["accuracy"] == trained["eval"]["accuracy"]
    signature = json.loads((command.folder / "sized/signature.json").read_text())
    assert signature["input"]["shape"][1:] == [16, 16, 1]


def test_keys_of_another_model_are_refused(command: Command) -> None:
    words = ["train", "--config=mnist_mlp", "--config.model.name=resnet8"]
    message = command.refused(*words, "--config.model.mlp.dropout=0.1")
    assert message.startswith("--config.model.mlp.dropout is set, but model.name=resnet8 does not")


def test_check_downloads_nothing(command: Command) -> None:
    words = ["check", "--config=cifar10_resnet18", "--config.data.download=true"]
    done = command(*words, f"--config.data.path={command.folder}/none")
    assert done.returncode == 2
    assert "not known before the download: cifar10 is not prepared in" in done.stdout
    assert not (command.folder / "none").exists()
