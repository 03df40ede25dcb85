"""`scripts/slurm.sbatch`, with stand-ins for `srun`, which starts its tasks here, and others."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts.cloud import ROOT, finish, wait_until, write_script

SCRIPT = ROOT / "scripts" / "slurm.sbatch"
TASKS = 3

# As the real one: each task in a process group, and the highest status at the end.
SRUN = """#!/usr/bin/env python3
import os, signal, subprocess, sys
words = sys.argv[1:]
assert words[:2] == ["--kill-on-bad-exit=0", "--wait=0"], words
tasks = [
    subprocess.Popen(words[2:], env={**os.environ, "SLURM_PROCID": str(k)}, process_group=0)
    for k in range(int(os.environ["SLURM_NTASKS"]))
]
signal.signal(signal.SIGTERM, lambda *_: [os.killpg(task.pid, signal.SIGTERM) for task in tasks])
with open("srun", "w") as file:
    file.write("started")
sys.exit(max(task.wait() for task in tasks))
"""
# Ends with the status in `statuses`, or waits for SIGTERM.
JAXTRAIN = """#!/usr/bin/env bash
printf '%s\\n' "$@" >"words-$SLURM_PROCID"
read -ra statuses <statuses
status=${statuses[$SLURM_PROCID]}
[[ $status == wait ]] || exit "$status"
trap 'sleep 0.3; exit 75' TERM
touch "waits-$SLURM_PROCID"
while :; do sleep 0.05; done
"""


class Slurm:
    """A job of three tasks in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        write_script(folder / "bin" / "srun", SRUN)
        write_script(folder / "bin" / "jaxtrain", JAXTRAIN)
        write_script(folder / "bin" / "squeue", '#!/bin/sh\necho "$*" >>asked\ncat state\n')
        write_script(
            folder / "bin" / "scontrol", '#!/bin/sh\necho "$*" >>asked\ntest ! -e refuses\n'
        )
        (folder / "state").write_text("RUNNING\n")

    def start(self, statuses: str, *words: str, **environment: str) -> subprocess.Popen[str]:
        (self.folder / "statuses").write_text(statuses)
        return subprocess.Popen(
            ["bash", str(SCRIPT), *words],
            cwd=self.folder,
            env={
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                "SLURM_JOB_ID": "41",
                "SLURM_NTASKS": str(TASKS),
                "SLURM_SUBMIT_DIR": str(self.folder),
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, statuses: str, *words: str, **environment: str) -> tuple[int, str]:
        """The status of the job and what it says."""
        done = finish(self.start(statuses, *words, **environment))
        assert not list(self.folder.glob(".jaxtrain-*"))
        return done.returncode, done.stderr

    def requeued(self) -> int:
        asked = self.folder / "asked"
        return asked.read_text().splitlines().count("requeue 41") if asked.exists() else 0


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    return Slurm(tmp_path)


def test_every_task_trains_with_the_words_as_they_are(slurm: Slurm) -> None:
    words = ["--config=my config.py", "--config.data.augment=flip|pad_crop(4)", "--note=it's $HOME"]
    assert slurm("0 0 0", *words) == (0, "")
    for task in range(TASKS):
        said = (slurm.folder / f"words-{task}").read_text().splitlines()
        assert said == ["train", *words]
    assert slurm.requeued() == 0


@pytest.mark.parametrize("statuses", ["75 75 75", "7 7 7", "0 75 0", "7 75 75"])
def test_stopped_or_left_by_a_peer_goes_back_into_the_queue(slurm: Slurm, statuses: str) -> None:
    worst = 7 if "7" in statuses.split() else 75
    status, said = slurm(statuses)
    assert status == worst
    assert said == f"slurm.sbatch: status {worst}; back into the queue, restart 1 of 20\n"
    assert slurm.requeued() == 1


@pytest.mark.parametrize(("statuses", "worst"), [("7 3 7", 3), ("75 75 5", 5), ("1 0 0", 1)])
def test_any_other_status_is_the_cause_and_ends_the_job(
    slurm: Slurm, statuses: str, worst: int
) -> None:
    assert slurm(statuses) == (worst, "")
    assert slurm.requeued() == 0


def test_restarts_are_bounded(slurm: Slurm) -> None:
    limit = {"JAXTRAIN_RETRIES": "2"}
    assert slurm("75 75 75", SLURM_RESTART_COUNT="1", **limit)[0] == 75
    assert slurm.requeued() == 1
    status, said = slurm("75 75 75", SLURM_RESTART_COUNT="2", **limit)
    assert (status, slurm.requeued()) == (75, 1)
    assert "after JAXTRAIN_RETRIES=2 restarts" in said
    status, said = slurm("0 0 0", JAXTRAIN_RETRIES="two")
    assert (status, said.count("\n")) == (2, 1)
    assert "JAXTRAIN_RETRIES=two is not a whole number, such as 20" in said


def test_a_cancelled_job_stays_ended(slurm: Slurm) -> None:
    for state in ("COMPLETING\n", ""):
        (slurm.folder / "state").write_text(state)
        status, said = slurm("75 75 75")
        assert (status, slurm.requeued()) == (75, 0)
        assert f"the job is {state.strip() or 'gone'}, and Slurm's to end" in said


def test_a_cluster_that_does_not_requeue_is_told_of(slurm: Slurm) -> None:
    (slurm.folder / "refuses").touch()
    status, said = slurm("7 7 7")
    assert status == 7
    assert "error: Slurm does not requeue job 41" in said


def test_a_signal_before_the_time_limit_waits_for_what_jaxtrain_makes_of_it(slurm: Slurm) -> None:
    """Slurm signals the shell around jaxtrain as well, which must not end before it."""
    process = slurm.start("wait wait wait")
    wait_until(lambda: len(list(slurm.folder.glob("waits-*"))) == TASKS)
    (srun,) = children_named(process.pid, "srun")
    os.kill(srun, 15)
    done = finish(process)
    assert (done.returncode, slurm.requeued()) == (75, 1), done.stderr


def children_named(parent: int, name: str) -> Iterator[int]:
    for path in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if name in Path(f"/proc/{path}/cmdline").read_text():
            yield int(path)


def test_the_options_of_the_job() -> None:
    options = dict(
        re.fullmatch(r"--([a-z-]+)(?:=(.*))?", line.split()[1]).groups()
        for line in SCRIPT.read_text().splitlines()
        if line.startswith("#SBATCH")
    )
    assert options == {
        "job-name": "jaxtrain",
        "output": "%x-%j.log",
        "open-mode": "append",
        "requeue": None,
        "signal": "TERM@300",
    }
    lines = SCRIPT.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first:]), "Slurm reads no further"
