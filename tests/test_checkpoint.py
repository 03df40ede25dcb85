import asyncio
import gc
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore
from helpers import data_mesh

from jaxtrain import checkpoint
from jaxtrain.checkpoint import Best, Checkpoints
from jaxtrain.errors import CheckpointError, NonFiniteError, UsageError
from jaxtrain.parallel.mesh import on_mesh, replicated
from jaxtrain.state import TrainState, all_finite, fingerprint
from jaxtrain.tasks import Interval

# After a failed read Orbax leaves work behind that complains when it is collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def _collected():
    yield
    gc.collect()


# Not compressible, so that the arrays fill the largest file of a step.
NOISE = jnp.asarray(np.random.RandomState(0).randn(30, 20), jnp.float32)
META = {"class_names": ["a", "b"], "best": None}


def state(step: int, value: float = 1.0) -> TrainState:
    return TrainState(
        step=jnp.int32(step),
        seed=jnp.uint32(7),
        params={"kernel": NOISE * value, "bias": jnp.arange(20.0)},
        collections={},
        opt_state=({"mu": NOISE + step}, jnp.int32(step)),
        interval=Interval.empty(),
        loss_scale=None,
    )


def abstract(devices: int = 1) -> TrainState:
    return on_mesh(jax.eval_shape(lambda: state(1)), data_mesh(jax.devices()[:devices]))


def best(step):
    return {"class_names": ["a", "b"], "best": {"step": step, "metric": "loss", "value": 0.5}}


def saved(directory, steps, keep=3, bests=()):
    """Saves some steps; `bests` are the best ones at each."""
    with Checkpoints(directory, keep) as checkpoints:
        for step, meta in itertools.zip_longest(steps, map(best, bests), fillvalue=META):
            checkpoints.save(state(step), meta)
    return checkpoint.list_steps(directory)


def equal(a, b) -> bool:
    return all(
        np.array_equal(one, other)
        for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def test_what_is_saved_comes_back_bit_for_bit_on_any_devices(tmp_path):
    saved(tmp_path, [5])
    for devices in (1, 2, 8):
        found = checkpoint.restore_state(tmp_path, 5, abstract(devices))
        assert equal(found, state(5))
        assert len(found.params["kernel"].sharding.device_set) == devices
    assert equal(checkpoint.restore_model(tmp_path, 5, abstract().model), state(5).model)
    meta = checkpoint.read_meta(tmp_path, 5)
    assert meta["class_names"] == ["a", "b"]
    assert meta["step"] == 5


def test_a_state_may_be_donated_as_soon_as_save_returns(tmp_path):
    overwrite = jax.jit(lambda s: jax.tree.map(lambda x: x * 0, s), donate_argnums=0)
    big = jax.device_put(state(1).replace(params={"w": jnp.ones((2000, 1000))}))
    with Checkpoints(tmp_path, 3) as checkpoints:
        checkpoints.save(big, META)
        overwritten = jax.block_until_ready(overwrite(big))
    target = on_mesh(jax.eval_shape(lambda: overwritten), data_mesh(jax.devices()[:1]))
    found = checkpoint.restore_state(tmp_path, 1, target)
    assert float(found.params["w"].min()) == 1.0


def test_the_newest_are_kept(tmp_path):
    assert saved(tmp_path, [1, 2, 3, 4, 5], keep=2) == [4, 5]


def test_a_step_is_saved_once(tmp_path):
    saved(tmp_path, [3])
    before = os.stat(tmp_path / "3").st_mtime_ns
    assert saved(tmp_path, [3]) == [3]
    assert os.stat(tmp_path / "3").st_mtime_ns == before


def test_the_best_and_the_last_both_survive(tmp_path):
    assert saved(tmp_path, [1, 2, 3, 4, 5], 2, [1, 2, 2, 2, 2]) == [2, 4, 5]
    assert saved(tmp_path, [6, 7], 1, [2, 2]) == [2, 7]
    assert saved(tmp_path, [8, 9], 1, [8, 8]) == [8, 9]
    assert saved(tmp_path, [10], 1) == [10]


def test_a_step_that_turns_out_the_best_says_so_and_is_kept(tmp_path):
    saved(tmp_path, [1], 1)
    arrays = {path: path.stat().st_mtime_ns for path in (tmp_path / "1" / "model").rglob("*")}
    with Checkpoints(tmp_path, 1) as checkpoints:
        checkpoints.save(state(1, 2.0), {**best(1), "more": "é"}, overwrite=True)
        assert arrays == {path: path.stat().st_mtime_ns for path in arrays}
        meta = checkpoint.read_meta(tmp_path, 1)
        assert (meta["best"], meta["more"], meta["step"]) == (best(1)["best"], "é", 1)
        checkpoints.save(state(2), best(1))
        checkpoints.save(state(3), best(1), overwrite=True)
    assert checkpoint.list_steps(tmp_path) == [1, 3]
    assert equal(checkpoint.restore_state(tmp_path, 1, abstract()), state(1))
    assert equal(checkpoint.restore_state(tmp_path, 3, abstract()), state(3))


STATE = """
import os, pathlib, shutil, signal, sys
import jax.numpy as jnp
from jaxtrain.checkpoint import Checkpoints
from jaxtrain.errors import CheckpointError
from jaxtrain.state import TrainState
from jaxtrain.tasks import Interval

folder = pathlib.Path(sys.argv[1])
step, seed, params = jnp.int32(1), jnp.uint32(7), {"w": jnp.ones(3)}
state = TrainState(step, seed, params, {}, (), Interval.empty(), None)
"""

# The state of these programs is not the one that was saved: nothing may look at its arrays.
OVERWRITE = (
    STATE.replace("{", "{{").replace("}", "}}")
    + """
def kill(*words):
    os.kill(os.getpid(), signal.SIGKILL)

with Checkpoints(folder, 1) as checkpoints:
    os.{when} = kill
    meta = {{"best": {{"step": 1, "metric": "loss", "value": 0.5}}}}
    checkpoints.save(state, meta, overwrite=True)
"""
)


@pytest.mark.parametrize("when", ["fsync", "replace"])
def test_a_kill_while_a_step_is_given_another_meta_loses_nothing(tmp_path, when):
    """The only step; the process is gone before its new meta is in place."""
    saved(tmp_path, [1], 1)
    program = OVERWRITE.format(when=when)
    found = subprocess.run([sys.executable, "-c", program, tmp_path], timeout=100, check=False)
    assert found.returncode == -signal.SIGKILL
    said = []
    restored = checkpoint.restore_newest(tmp_path, abstract(), said.append)
    assert equal(restored, state(1))
    assert said == []
    assert checkpoint.read_meta(tmp_path, 1)["best"] is None
    with Checkpoints(tmp_path, 1) as checkpoints:
        checkpoints.save(state(1), best(1), overwrite=True)
    assert checkpoint.read_meta(tmp_path, 1)["best"] == best(1)["best"]


def test_a_meta_that_cannot_be_replaced_is_exit_5(tmp_path):
    saved(tmp_path, [1], 1)
    with Checkpoints(tmp_path, 1) as checkpoints:
        (tmp_path / "1" / "meta" / "data.json").write_text("{")
        with pytest.raises(CheckpointError, match="checkpoint of step 1 cannot be written to"):
            checkpoints.save(state(1), best(1), overwrite=True)


def test_best_is_beaten_only_by_better():
    assert Best(1, "accuracy", 0.5).beaten_by(0.6)
    assert not Best(1, "accuracy", 0.5).beaten_by(0.5)
    assert not Best(1, "accuracy", 0.5).beaten_by(float("nan"))
    assert Best(1, "loss", 0.5).beaten_by(0.4)
    assert not Best(1, "loss", 0.5).beaten_by(0.6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_model_is_never_saved(tmp_path, bad):
    saved(tmp_path, [1])
    with (
        Checkpoints(tmp_path, 3) as checkpoints,
        pytest.raises(NonFiniteError, match="after step 2; this step is not saved"),
    ):
        checkpoints.save(state(2, bad), META)
    assert checkpoint.list_steps(tmp_path) == [1]


def flip_a_byte(folder, item) -> None:
    """Flips a byte in the item's largest file, where the arrays are."""
    files = [p for p in (folder / item).rglob("*") if p.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)


def truncate(folder, item) -> None:
    files = [p for p in (folder / item).rglob("*") if p.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)


def remove(folder, item) -> None:
    shutil.rmtree(folder / item)


@pytest.mark.parametrize("damage", [flip_a_byte, truncate, remove])
@pytest.mark.parametrize("item", ["model", "training"])
def test_a_damaged_step_is_noticed_and_set_aside(tmp_path, damage, item):
    saved(tmp_path, [1, 2, 3])
    damage(tmp_path / "3", item)
    with pytest.raises(CheckpointError, match=f"checkpoint {tmp_path / '3'}"):
        checkpoint.restore_state(tmp_path, 3, abstract())
    said = []
    found = checkpoint.restore_newest(tmp_path, abstract(), said.append)
    assert found is not None
    assert equal(found, state(2))
    assert len(said) == 1
    assert f"set aside as {tmp_path / '3.damaged'}, going on from step 2" in said[0]
    assert saved(tmp_path, [3]) == [1, 2, 3]
    assert equal(checkpoint.restore_state(tmp_path, 3, abstract()), state(3))


def test_when_every_step_is_damaged_nothing_is_touched(tmp_path):
    saved(tmp_path, [1, 2])
    for step in ("1", "2"):
        flip_a_byte(tmp_path / step, "model")
    with pytest.raises(CheckpointError, match="all 2 checkpoints are damaged") as caught:
        checkpoint.restore_newest(tmp_path, abstract(), lambda _: None)
    assert caught.value.status == 5
    assert checkpoint.list_steps(tmp_path) == [1, 2]


def test_damaged_meta_is_named(tmp_path):
    saved(tmp_path, [1])
    (path,) = [p for p in (tmp_path / "1" / "meta").iterdir() if p.name.endswith(".json")]
    json.loads(path.read_text())
    for text in ("{", "[]", '{"a": 1}'):
        path.write_text(text)
        with pytest.raises(CheckpointError, match="checkpoint"):
            checkpoint.read_meta(tmp_path, 1)


def test_another_shape_is_refused(tmp_path):
    saved(tmp_path, [1])
    shape = jax.ShapeDtypeStruct((3, 2), jnp.float32)
    bias = abstract().params["bias"]
    for params, said in (
        ({"kernel": shape, "bias": bias}, r"params/kernel is \(30, 20\) there, but \(3, 2\) here"),
        ({"bias": bias}, r"params/kernel is \(30, 20\) there, but nothing here"),
        ({**abstract().params, "w": shape}, r"params/w is nothing there, but \(3, 2\) here"),
    ):
        other = abstract().replace(params=params)
        for restore in (
            lambda: checkpoint.restore_state(tmp_path, 1, other),  # noqa: B023
            lambda: checkpoint.restore_newest(tmp_path, other, lambda _: None),  # noqa: B023
        ):
            with pytest.raises(CheckpointError, match=f"not of this model: model {said}"):
                restore()
    assert checkpoint.list_steps(tmp_path) == [1]


def test_nothing_saved_yet(tmp_path):
    assert checkpoint.restore_newest(tmp_path, abstract(), lambda _: None) is None
    assert checkpoint.list_steps(tmp_path / "missing") == []
    with pytest.raises(UsageError, match="holds no checkpoint yet"):
        checkpoint.resolve_step(tmp_path, "last")


def test_names_of_steps(tmp_path):
    saved(tmp_path, [10, 20, 30], 5, [20, 20, 20])
    assert checkpoint.resolve_step(tmp_path, "last") == 30
    assert checkpoint.resolve_step(tmp_path, "best") == 20
    assert checkpoint.resolve_step(tmp_path, "10") == 10
    with pytest.raises(UsageError, match="the steps are 10, 20, 30"):
        checkpoint.resolve_step(tmp_path, "15")


def test_a_folder_that_cannot_be_written_is_exit_5(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError) as caught:
        Checkpoints(tmp_path / "file", 3)
    assert caught.value.status == 5


FAILING_WRITE = (
    STATE
    + """
try:
    with Checkpoints(folder, 3) as checkpoints:
        shutil.rmtree(folder)
        folder.write_text("in the way")
        checkpoints.save(state, {"class_names": [], "best": None})
except CheckpointError as error:
    print(error, flush=True)
    os._exit(error.status)
"""
)


def test_a_failing_write_is_said_at_the_end(tmp_path):
    """In a process of its own: Orbax's threads go on waiting for the folder for minutes."""
    found = subprocess.run(
        [sys.executable, "-c", FAILING_WRITE, tmp_path / "run"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert found.returncode == 5
    assert found.stdout.startswith(f"checkpoint of step 1 cannot be written to {tmp_path / 'run'}")
    assert found.stdout.count("\n") == 1


def test_fingerprint_sees_bits_and_positions_but_not_sharding():
    mesh = data_mesh(jax.devices())
    values = jnp.asarray(np.random.RandomState(0).randn(64, 3), jnp.float32)
    alone = int(fingerprint([values])[0])
    split = jax.device_put(values, jax.NamedSharding(mesh, jax.P("data")))
    assert int(jax.jit(fingerprint, out_shardings=replicated(mesh))([split])[0]) == alone
    assert int(fingerprint([values[::-1]])[0]) != alone
    assert int(fingerprint([values.at[3, 1].multiply(1 + 2e-7)])[0]) != alone
    for dtype in (jnp.bfloat16, jnp.float16, jnp.int8, jnp.uint32, jnp.bool_):
        assert fingerprint([values.astype(dtype)]).shape == (1,)


def test_all_finite_ignores_integers():
    assert bool(all_finite({"a": jnp.ones(3), "b": jnp.int32(3)}))
    assert not bool(all_finite({"a": jnp.array([1, jnp.nan])}))
    assert bool(all_finite({}))


@pytest.mark.parametrize("leave", ["no metadata", "an empty folder", "leading zeros", "a copy"])
def test_folders_that_are_no_whole_step_are_set_aside(tmp_path, leave):
    saved(tmp_path, [1, 2, 3])
    if leave == "no metadata":
        (tmp_path / "3" / "_CHECKPOINT_METADATA").unlink()
    elif leave == "an empty folder":
        (tmp_path / "4").mkdir()
    else:
        shutil.copytree(tmp_path / "3", tmp_path / ("0009" if leave == "leading zeros" else "9"))
    said = []
    found = checkpoint.restore_newest(tmp_path, abstract(), said.append)
    assert found is not None
    assert int(found.step) == (2 if leave == "no metadata" else 3)
    assert len(said) == 1
    assert "set aside" in said[0]
    assert saved(tmp_path, [3, 4]) == [2, 3, 4]


def test_what_a_kill_left_of_a_step_that_was_being_removed_is_removed(tmp_path):
    saved(tmp_path, [1, 2, 3])
    (tmp_path / "1" / "_CHECKPOINT_METADATA").unlink()
    shutil.rmtree(tmp_path / "1" / "model")
    said = []
    found = checkpoint.restore_newest(tmp_path, abstract(), said.append)
    assert found is not None
    assert int(found.step) == 3
    assert said == []
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["2", "3"]


def test_answers_that_come_after_a_failed_read_are_not_spoken_of(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: said.append(unraisable.exc_value))
    with pytest.raises(CheckpointError):
        checkpoint.read_meta(tmp_path, 1)

    async def ask(answer):
        task = asyncio.ensure_future(answer)
        await asyncio.sleep(0)
        return task

    promise, answer = tensorstore.Promise.new()
    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(ask(answer))
    loop.close()
    promise.set_result(1)
    assert not task.done()
    assert said == []

    promise, answer = tensorstore.Promise.new()
    answer.add_done_callback(lambda answer: 1 / 0)
    promise.set_result(1)
    assert [type(error) for error in said] == [ZeroDivisionError]


def test_an_item_that_may_not_be_read_is_no_other_model(open_place, locked):
    saved(open_place, [3])
    said = "3/model: Permission denied; make it readable"
    with locked(open_place / "3" / "model", 0), pytest.raises(CheckpointError, match=said):
        checkpoint.restore_model(open_place, 3, abstract().model)
