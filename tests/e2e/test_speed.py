"""The speeds that a run shows are those that a watch would show."""

import itertools
import re

import pytest
from e2e.command import Command, read_metrics, result

BATCH = 128


def test_images_per_second_are_true(command: Command) -> None:
    """All times are of one run: a slow machine is slow for both sides."""
    done = command(
        "train",
        "--config=digits.py",
        f"--config.train.batch_size={BATCH}",
        "--config.train.steps=1000",
        "--config.model.mlp.hidden_sizes=512",
        "--config.report.every_steps=100",
        "--config.eval.every_steps=200",
    )
    summary = result(done)
    (workdir,) = (command.folder / "runs").iterdir()
    events = read_metrics(workdir)
    trained = [event for event in events if event["split"] == "train"]
    shown = sum(BATCH * 100 / event["images_per_second"] for event in trained)

    # By the clock of the log: an interval lasts from the line before to its own line.
    intervals = [
        (before, after, after["time"] - before["time"])
        for before, after in itertools.pairwise(events)
    ]
    training = sum(seconds for _, after, seconds in intervals if after["split"] == "train")
    first = BATCH * 100 / trained[0]["images_per_second"]  # no line comes before it
    assert shown - first == pytest.approx(training, rel=0.1)

    # By the run's own seconds, without compiling, evaluating, and what comes after the last line.
    evaluating = sum(seconds for _, after, seconds in intervals if after["split"] != "train")
    compiling = float(re.search(r"compiled in ([\d.]+) s", done.stderr)[1])
    ending = (workdir / "result.json").stat().st_mtime - events[-1]["time"]
    rest = summary["seconds"] - compiling - evaluating - ending
    assert BATCH * 1000 / shown * rest == pytest.approx(BATCH * 1000, rel=0.1)
