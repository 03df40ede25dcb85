"""Any interval of reports, evaluations and checkpoints over a run of 7 steps."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from e2e.command import Command, saved_steps, steps_of, together

STEPS = list(range(1, 8))

# report.every_steps, eval.every_steps, checkpoint.every_steps and .keep; the steps of each event.
CASES = {
    "zero": ((0, 0, 0, 3), ([7], [7], [7])),
    "none": ((100, None, None, 3), ([7], [7], [7])),
    "more_than_there_are": ((100, 8, 1000, 3), ([7], [7], [7])),
    "every_step": ((1, 1, 1, 7), (STEPS, STEPS, STEPS)),
    "the_newest_are_kept": ((1, 3, 1, 2), (STEPS, [3, 6, 7], [6, 7])),
    "the_last_step_once": ((0, 7, 7, 3), ([7], [7], [7])),
}


@pytest.fixture(scope="module")
def folder(new_command: Callable[[], Command]) -> Path:
    """Where the run of each case is."""
    command = new_command()

    def run(name: str) -> None:
        report, evaluate, save, keep = CASES[name][0]
        command.result(
            "train",
            "--config=digits.py",
            "--config.train.steps=7",
            f"--config.report.every_steps={report}",
            f"--config.eval.every_steps={evaluate}",
            f"--config.checkpoint.every_steps={save}",
            f"--config.checkpoint.keep={keep}",
            f"--workdir={name}",
        )

    together(*(partial(run, name) for name in CASES))
    return command.folder


@pytest.mark.parametrize("name", CASES)
def test_events(folder: Path, name: str) -> None:
    reported, evaluated, saved = CASES[name][1]
    assert steps_of(folder / name, "train") == reported
    assert steps_of(folder / name, "test") == evaluated
    assert saved_steps(folder / name) == saved
