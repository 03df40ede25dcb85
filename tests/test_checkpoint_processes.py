"""Checkpoints of several processes, each of which has a part of the arrays only."""

from pathlib import Path

import split_state
from many import run_processes

from jaxtrain import checkpoint
from jaxtrain.checkpoint import Checkpoints

BEGIN = """
import pathlib, sys
import jax, numpy as np
from jaxtrain import checkpoint
from jaxtrain.checkpoint import Checkpoints, agreement, reading, writing
from jaxtrain.errors import CheckpointError, JaxtrainError
from split_state import META, abstract, assert_is, state

folder = pathlib.Path(sys.argv[2])
index = jax.process_index()
assert jax.process_count() > 1

def attempt(act):
    try:
        act()
    except JaxtrainError as error:
        say(f"{type(error).__name__} {error.status}: {error}")
    else:
        say("nothing was raised")
"""

SAVE = """
best = {"best": {"step": 2, "metric": "loss", "value": 0.5}}
with Checkpoints(folder, 1) as checkpoints:
    checkpoints.save(state(1, split=True), META)
    checkpoints.save(state(2, split=True), META)
    checkpoints.save(state(2, split=True), best, overwrite=True)
    say(checkpoint.read_meta(folder, 2)["best"]["value"])
    checkpoints.save(state(2, split=False, factor=3.0), best)  # it is saved already
    checkpoints.save(state(3, split=False), best)
    attempt(lambda: checkpoints.save(state(4, split=True, factor=np.nan), META))
for split in (True, False):
    assert_is(checkpoint.restore_state(folder, 2, abstract(split=split)), 2, split=split)
    assert_is(checkpoint.restore_state(folder, 3, abstract(split=split)), 3, split=split)
say(checkpoint.agreed_steps(folder))
"""

RESTORE = """
for name in sys.argv[3].split(","):
    for split in (True, False):
        found = checkpoint.restore_state(folder / name, 2, abstract(split=split))
        assert_is(found, 2, split=split)
    say(checkpoint.resolve_step(folder / name, "last"))
"""


def save_here(folder: Path, *, split: bool) -> None:
    with Checkpoints(folder, 3) as checkpoints:
        for step in (1, 2):
            checkpoints.save(split_state.state(step, split=split), split_state.META)


def test_what_processes_save_is_restored_on_them_and_on_one(tmp_path: Path) -> None:
    said = run_processes(2, BEGIN + SAVE, tmp_path)
    for text in said:
        value, bad, steps = text.splitlines()
        assert value == "0.5"
        assert bad.startswith("NonFiniteError 4: a parameter is NaN or infinite after step 4")
        assert steps == "[2, 3]", "the best and the last"
    for devices in (1, 2, 8):
        for split in (True, False):
            wanted = split_state.abstract(split=split, devices=devices)
            found = checkpoint.restore_state(tmp_path, 2, wanted)
            split_state.assert_is(found, 2, split=split, devices=devices)


def test_what_one_process_saves_is_restored_on_several(tmp_path: Path) -> None:
    save_here(tmp_path / "split", split=True)
    save_here(tmp_path / "whole", split=False)
    said = run_processes(2, BEGIN + RESTORE, tmp_path, "split,whole")
    assert said == ["2\n2\n", "2\n2\n"]


FAIL = """
load = reading._load_here

def fail_on(step, kind, text):
    def failing(path, items):
        if index == 1 and path.name == str(step):
            raise kind(f"checkpoint {path} {text}")
        return load(path, items)
    reading._load_here = failing

def restore():
    found = checkpoint.restore_newest(folder, abstract(split=True), say)
    say("restored", int(found.step))
    assert_is(found, int(found.step), split=True)

fail_on(2, CheckpointError, "cannot be read: a disk fails")
attempt(restore)
fail_on(2, agreement.DamagedError, "is damaged")
attempt(restore)
fail_on(1, MemoryError, "is too large")
attempt(restore)
reading._load_here = load

def unreadable():
    raise PermissionError(13, "Permission denied")

if index == 0:
    writing.list_steps = lambda directory: unreadable()
attempt(lambda: Checkpoints(folder, 3))
say(agreement.on_first(lambda: [index, None, "é"]))
"""


def test_a_failure_that_one_process_sees_is_everybodys(tmp_path: Path) -> None:
    save_here(tmp_path, split=True)
    said = run_processes(2, BEGIN + FAIL, tmp_path)
    assert said[0] == said[1]
    bad = f"process 1: checkpoint {tmp_path}"
    assert said[0].splitlines() == [
        f"CheckpointError 5: {bad}/2 cannot be read: a disk fails",
        f"warning: {bad}/2 is damaged; it was set aside as {tmp_path}/2.damaged, going on from "
        "step 1",
        "restored 1",
        "nothing was raised",
        f"CheckpointError 5: process 1: MemoryError: checkpoint {tmp_path}/1 is too large",
        f"CheckpointError 5: cannot open {tmp_path}: PermissionError: [Errno 13] Permission denied",
        "[0, None, 'é']",
    ]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["1", "2.damaged"]


def test_four_processes_save_for_two(tmp_path: Path) -> None:
    run_processes(4, BEGIN + SAVE, tmp_path / "run", devices=1)
    assert run_processes(2, BEGIN + RESTORE, tmp_path, "run") == ["3\n", "3\n"]
