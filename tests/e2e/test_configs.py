"""Every recipe that comes with jaxtrain is checked and stepped."""

from pathlib import Path

import pytest
from e2e.command import Command, steps_of

from jaxtrain.config import packaged_recipes

# Three steps, whatever the recipe's own length and warm-up.
SHORT = [
    "--config.train.epochs=None",
    "--config.train.steps=3",
    "--config.schedule.warmup_steps=None",
    "--config.schedule.warmup_epochs=None",
    "--config.report.every_steps=1",
]


@pytest.mark.parametrize("name", packaged_recipes())
def test_recipe(command: Command, name: str) -> None:
    done = command("check", f"--config={name}")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"ok: {name} would train" in done.stdout
    summary = command.result("train", f"--config={name}", *SHORT, "--workdir=run")
    assert (summary["status"], summary["step"]) == ("finished", 3)
    assert steps_of(Path(command.folder, "run"), "train") == [1, 2, 3]
    assert 0 < summary["eval"]["accuracy"] < 1
