"""A run whose newest checkpoint is damaged goes on from the one before, and saves it anew."""

import os
from pathlib import Path

from e2e.command import Command, read_arrays

from jaxtrain.checkpoint import list_steps

WORDS = ["--config=digits.py", "--config.checkpoint.every_steps=5", "--workdir=run"]


def damage(step: Path) -> None:
    """Cuts the file that holds the step's weights."""
    files = [path for path in (step / "model").rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)


def test_the_newest_checkpoint_may_be_damaged_again_and_again(command: Command) -> None:
    summary = command.result("train", *WORDS)
    run = command.folder / "run"
    arrays = read_arrays(run)
    for aside in ("20.damaged", "20.damaged-2"):
        damage(run / "checkpoints" / "20")
        message = command.refused("eval", "--workdir=run", status=5)
        assert "checkpoint run/checkpoints/20" in message
        (run / "result.json").unlink()
        done = command("train", *WORDS)
        assert done.returncode == 0, done.stderr
        assert f"set aside as run/checkpoints/{aside}, going on from step 15" in done.stderr
        assert (run / "checkpoints" / aside).is_dir()
        assert list_steps(run / "checkpoints") == [10, 15, 20]
        again = command.result("train", *WORDS)
        assert again["eval"] == summary["eval"]
        for name, values in read_arrays(run, 20).items():
            assert (values == arrays[name]).all()
