"""One run under every way to lie on eight devices: the same numbers, and any goes on with any."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from e2e.command import Command, read_arrays, read_metrics, saved_steps, together

WORDS = [
    "--config=digits.py",
    "--config.model.name=resnet8",
    "--config.data.augment=flip|pad_crop(2)",
    "--config.model.resnet.stochastic_depth=0.2",
    "--config.model.resnet.width=0.5",
    "--config.train.batch_size=16",
    "--config.train.steps=3",
    "--config.report.every_steps=1",
    "--config.eval.batch_size=64",
    "--config.data.holdout=128",
]
LAYOUTS = {
    "one": (1, []),
    "data": (8, []),
    "pmap": (8, ["--config.parallel.mode=pmap"]),
    "fsdp": (8, ["--config.parallel.mesh=data=2,fsdp=4", "--config.parallel.rules=fsdp"]),
    "tensor": (8, ["--config.parallel.mesh=data=4,model=2", "--config.parallel.rules=tensor"]),
}


@pytest.fixture(scope="module")
def trained(new_command: Callable[..., Command]) -> Command:
    """A command in a folder with a run of each."""
    command = new_command(quickly=True)
    together(
        *(
            partial(command.result, "train", *WORDS, *more, f"--workdir={name}", devices=devices)
            for name, (devices, more) in LAYOUTS.items()
        )
    )
    return command


def losses(workdir: Path) -> list[float]:
    return [event["loss"] for event in read_metrics(workdir)]


@pytest.mark.parametrize("name", ["data", "pmap", "fsdp", "tensor"])
def test_the_numbers_are_those_of_one_device(trained: Command, name: str) -> None:
    one, other = (trained.folder / each for each in ("one", name))
    np.testing.assert_allclose(losses(one)[:3], losses(other)[:3], rtol=2e-4)
    assert losses(one)[3] == pytest.approx(losses(other)[3], rel=0.01)
    ours, theirs = read_arrays(other), read_arrays(one)
    assert ours.keys() == theirs.keys()
    for key, array in theirs.items():
        if "batch_stats" in key:
            np.testing.assert_allclose(ours[key], array, rtol=2e-3, atol=2e-4)


def test_each_is_evaluated_on_other_devices(trained: Command) -> None:
    for devices, name in ((2, "fsdp"), (4, "tensor"), (1, "pmap")):
        scored = trained.result("eval", f"--workdir={name}", devices=devices)
        event = read_metrics(trained.folder / name)[-1]
        assert scored["eval"]["accuracy"] == event["accuracy"]
        assert scored["eval"]["loss"] == pytest.approx(event["loss"], rel=1e-6)


def test_each_goes_on_as_another(trained: Command) -> None:
    """Two more steps: of what was split over four devices on one, and the other way round."""
    more = ["--extend", "--config.train.steps=5"]
    for old, new in (("fsdp", "one"), ("one", "fsdp"), ("tensor", "pmap")):
        devices, layout = LAYOUTS[new]
        plain = ["--config.parallel.mesh=data=-1", "--config.parallel.rules=replicated"]
        words = [*WORDS, *plain, *layout, *more, f"--workdir={old}"]
        trained.result("train", *words, devices=devices)
        assert saved_steps(trained.folder / old) == [3, 5]
    np.testing.assert_allclose(
        losses(trained.folder / "fsdp")[4:6], losses(trained.folder / "one")[4:6], rtol=0.05
    )


def test_what_cannot_be_laid_out_is_refused(command: Command) -> None:
    said = command.refused(
        "train", *WORDS, "--config.parallel.mesh=data=4,model=2", "--workdir=run", devices=4
    )
    assert said.startswith("parallel.mesh='data=4,model=2' takes 8 devices, but there are 4")
    mixed = ["--config.parallel.mode=pmap", "--config.parallel.mesh=data=2,model=2"]
    said = command.refused("train", *WORDS, *mixed, "--workdir=run", devices=4)
    assert "parallel.mode=pmap is data parallel only" in said
    assert not (command.folder / "run").exists()
