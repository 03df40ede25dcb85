"""The speeds that a run shows are those that a watch would show."""

import itertools
import re

import pytest
from e2e.command import Command, read_metrics, read_series, result

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
        # Evaluations that take their time.
        "--config.data.eval_split=train",
        "--config.eval.every_steps=100",
        "--config.eval.batch_size=3",
        "--config.checkpoint.every_epochs=0",
    )
    summary = result(done)
    (workdir,) = (command.folder / "runs").iterdir()
    events = read_metrics(workdir)
    series = read_series(workdir)
    assert [step for step, _ in series["train/loss"]] == list(range(100, 1001, 100))
    assert [step for step, _ in series["eval/loss"]] == list(range(100, 1001, 100))
    trained = [event for event in events if "count" not in event]
    shown = sum(BATCH * 100 / event["images_per_second"] for event in trained)

    # By the clock of the log: an interval lasts from the line before to its own line.
    intervals = [
        (before, after, after["time"] - before["time"])
        for before, after in itertools.pairwise(events)
    ]
    training = sum(seconds for _, after, seconds in intervals if "count" not in after)
    first = BATCH * 100 / trained[0]["images_per_second"]  # no line comes before it
    assert shown - first == pytest.approx(training, rel=0.1)

    # By the run's own seconds, without compiling, evaluating, and what comes after the last line.
    evaluating = sum(seconds for _, after, seconds in intervals if "count" in after)
    compiling = float(re.search(r"compiled in ([\d.]+) s", done.stderr)[1])
    ending = (workdir / "result.json").stat().st_mtime - events[-1]["time"]
    assert evaluating > 0.2 * training
    rest = summary["seconds"] - compiling - evaluating - ending
    assert BATCH * 1000 / shown * rest == pytest.approx(BATCH * 1000, rel=0.1)
