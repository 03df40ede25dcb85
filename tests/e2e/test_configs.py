"""Every recipe that comes with jaxtrain is loaded, checked and stepped."""

from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.command import Command, result, steps_of

from jaxtrain.config import packaged_recipes

# Three steps, whatever the recipe's own length and warm-up.
SHORT = [
    "--config.train.epochs=None",
    "--config.train.steps=3",
    "--config.schedule.warmup_steps=None",
    "--config.schedule.warmup_epochs=None",
    "--config.report.every_steps=1",
]

# Images as the data has them, and the number of classes; None where the recipe names them.
STAND_INS: dict[str, tuple[str, int | None]] = {
    "cifar10_resnet18": ("32,32,3", 10),
    "cifar10_resnet18_muon": ("32,32,3", 10),
    "dogs_vs_cats_resnet18": ("230,250,3", 2),
    "features_mlp": ("12", 3),
    "fashion_mnist_resnet": ("28,28,1", None),
    "finetune_folder": ("150,140,3", 4),
    "folder_resnet18": ("150,140,3", 4),
    "imagenet_resnet50": ("280,260,3", 1000),
    "imagenet_resnet50_a2": ("280,260,3", 1000),
    "imagenet_resnet50_a3": ("280,260,3", 1000),
}
BIG = (
    "cifar10_resnet18",
    "cifar10_resnet18_muon",
    "dogs_vs_cats_resnet18",
    "finetune_folder",
    "folder_resnet18",
    "imagenet_resnet50",
    "imagenet_resnet50_a2",
    "imagenet_resnet50_a3",
)

# Their networks are, but for stochastic depth, those of others, which are stepped as they are; one
# of few layers is compiled in a third of the time.
SAME_NETWORKS = (
    "cifar10_resnet18_muon",
    "dogs_vs_cats_resnet18",
    "finetune_folder",
    "imagenet_resnet50_a2",
    "imagenet_resnet50_a3",
)


def synthetic(name: str) -> list[str]:
    """Words that replace the recipe's data by random images of its shape."""
    if name not in STAND_INS:
        return []
    shape, classes = STAND_INS[name]
    words = [
        "--config.data.source=synthetic",
        "--config.data.path=None",
        "--config.data.name=None",
        "--config.data.train_split=train",
        "--config.data.eval_split=test",
        f"--config.data.synthetic.image_shape={shape}",
    ]
    return words if classes is None else [*words, f"--config.data.num_classes={classes}"]


@pytest.mark.parametrize("name", packaged_recipes())
def test_recipe(new_command: Callable[..., Command], name: str) -> None:
    command = new_command(quickly=True)
    words = [f"--config={name}", *synthetic(name)]
    more = ["--config.data.synthetic.examples=2000000"] if synthetic(name) else []
    small = ["--config.train.batch_size=8"]
    if synthetic(name):
        small += ["--config.data.synthetic.examples=24", "--config.data.synthetic.eval_examples=8"]
    if name == "mnist_resnet":
        small.append("--config.data.holdout=128")  # evaluated in place of 10,000 images
    if name in BIG:
        small.append("--config.model.resnet.width=0.125")
    if name in SAME_NETWORKS:
        small.append("--config.model.name=resnet8")
    if name == "imagenet_resnet50":
        small.append("--config.schedule.boundaries=0.3,0.6")
    checked, trained = command.in_turn(
        ["check", *words, *more], ["train", *words, *small, *SHORT, "--workdir=run"]
    )
    assert (checked.returncode, checked.stderr) == (0, "")
    assert f"ok: {name} would train" in checked.stdout
    summary = result(trained)
    assert (summary["status"], summary["step"]) == ("finished", 3)
    assert steps_of(Path(command.folder, "run"), "train") == [1, 2, 3]
    assert 0 < summary["train"]["loss"] < 20
