import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import open_run

from jaxtrain.config import identity, load_json
from jaxtrain.errors import UsageError
from jaxtrain.files.temporary import unique_beside
from jaxtrain.workdir import DataIdentity, default_path, fresh_path

FINISHED = {"status": "finished", "step": 3, "train": {}, "eval": {}, "best": None}

HOLDER = """
import sys, time
from jaxtrain.config import from_dict
from jaxtrain.files.temporary import unique_beside
from jaxtrain.workdir import DataIdentity, open_run
data = DataIdentity(("0", "1"), {"train": "a"})
config = from_dict({"train": {"epochs": 3}})
with open_run(sys.argv[1], config, data, extend=False, say=print):
    print("held", flush=True)
    time.sleep(60)
"""


def save(run):
    """What keeps a run from another beginning."""
    (run.checkpoints_dir / "1").mkdir(parents=True)


def tree(path):
    return sorted(str(entry.relative_to(path)) for entry in path.rglob("*"))


def test_default_path_is_made_of_the_name_and_the_identity(config):
    path = default_path("mnist_mlp", config())
    assert path == Path("runs") / f"mnist_mlp-{identity(config())}"
    assert path == default_path("mnist_mlp", config(report__every_steps=7))
    assert path != default_path("mnist_mlp", config(seed=1))


def test_fresh_path_is_the_first_that_is_free(tmp_path, monkeypatch):
    run = tmp_path / "run"
    assert fresh_path(run) == run
    run.mkdir()
    assert fresh_path(run) == tmp_path / "run-2"
    (tmp_path / "run-2").touch()
    (tmp_path / "run-3").symlink_to("nowhere")
    assert fresh_path(run) == tmp_path / "run-4"
    monkeypatch.chdir(run)
    assert fresh_path(Path()) == tmp_path / "run-4"


def test_a_new_run_then_a_resumed_one(tmp_path, config):
    run = tmp_path / "a" / "b"
    with open_run(run, config()) as first:
        assert (first.path, first.extended, first.previous) == (
            run,
            False,
            None,
        )
        assert tree(run) == [".lock", "classes.json", "config.json", "data.json"]
        assert load_json(run / "config.json") == config()
    with open_run(str(run), config()) as second:
        assert not second.extended
        assert second.previous == config()


def test_where_things_are(tmp_path, config):
    with open_run(tmp_path, config()) as run:
        assert run.checkpoints_dir == tmp_path / "checkpoints"
        assert run.metrics_path == tmp_path / "metrics.jsonl"
        assert run.tensorboard_dir == tmp_path / "tensorboard"


def test_free_keys_may_change_and_are_kept(tmp_path, config):
    with open_run(tmp_path, config()):
        pass
    changed = config(report__every_steps=7, eval__batch_size=5)
    with open_run(tmp_path, changed) as run:
        assert run.previous == config()
        assert load_json(tmp_path / "config.json") == changed


def test_all_other_changes_are_refused_on_one_line(tmp_path, config):
    with open_run(tmp_path, config(optimizer__learning_rate=0.1)) as run:
        save(run)
    before = (tmp_path / "config.json").read_bytes()
    changed = config(optimizer__learning_rate=0.2, seed=3, report__every_steps=7)
    with pytest.raises(UsageError) as caught, open_run(tmp_path, changed):
        pass
    message = str(caught.value)
    assert "seed: 0 -> 3; optimizer.learning_rate: 0.1 -> 0.2; take the old values" in message
    assert "every_steps" not in message
    assert "--workdir" in message
    assert "--fresh" in message
    assert "\n" not in message
    assert (tmp_path / "config.json").read_bytes() == before


@pytest.mark.parametrize(
    ("old", "new", "extend", "fix"),
    [
        ({"train__epochs": 3}, {"train__epochs": 4}, False, "longer with --extend"),
        ({"train__epochs": 3}, {"train__epochs": 2}, False, "take the old values"),
        ({"train__epochs": 3}, {"train__epochs": 2}, True, "only allows a larger"),
        (
            {"train__epochs": 3},
            {"train__epochs": None, "train__steps": 9999},
            True,
            "only allows a larger",
        ),
        ({"train__epochs": 3}, {"train__epochs": 4, "seed": 1}, True, "only allows a larger"),
    ],
)
def test_lengths_that_are_refused(tmp_path, config, *, old, new, extend, fix):
    with open_run(tmp_path, config(**old)) as run:
        run.write_result(FINISHED)
    with pytest.raises(UsageError, match=fix), open_run(tmp_path, config(**new), extend=extend):
        pass
    assert load_json(tmp_path / "config.json") == config(**old)
    assert (tmp_path / "result.json").exists()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"train__epochs": 3}, {"train__epochs": 4.5}),
        (
            {"train__epochs": None, "train__steps": 10},
            {"train__epochs": None, "train__steps": 11},
        ),
    ],
)
def test_a_longer_run_is_no_longer_finished(tmp_path, config, old, new):
    with open_run(tmp_path, config(**old)) as run:
        run.write_result(FINISHED)
    with open_run(tmp_path, config(**new), extend=True) as run:
        assert run.extended
        assert run.previous == config(**old)
        assert run.finished() is None
    assert load_json(tmp_path / "config.json") == config(**new)


def test_extend_without_a_change_keeps_the_result(tmp_path, config):
    with open_run(tmp_path, config()) as run:
        run.write_result(FINISHED)
    with open_run(tmp_path, config(report__every_steps=3), extend=True) as run:
        assert not run.extended
        assert run.finished() == FINISHED


def test_a_crash_while_extending_never_looks_finished(tmp_path, config, monkeypatch):
    with open_run(tmp_path, config()) as run:
        run.write_result(FINISHED)

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with (
        pytest.raises(KeyboardInterrupt),
        open_run(tmp_path, config(train__epochs=4), extend=True),
    ):
        pass
    monkeypatch.undo()
    with open_run(tmp_path, config(train__epochs=4), extend=True) as run:
        assert run.finished() is None


def test_finished(tmp_path, config):
    with open_run(tmp_path, config()) as run:
        assert run.finished() is None
        for text in (
            "",
            "[]",
            '{"status": "finished"}',
            '{"status": "finis',
            '{"status": "running"}',
        ):
            (tmp_path / "result.json").write_text(text)
            assert run.finished() is None
        result = {**FINISHED, "eval": {"loss": float("nan"), "accuracy": 0.5}}
        run.write_result(result)
        assert run.finished() == {**result, "eval": {"loss": None, "accuracy": 0.5}}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (DataIdentity(("cat", "dog"), {"train": "a"}), "class 1 of the data is 'dog', but 'døg'"),
        (DataIdentity(("cat",), {"train": "a"}), r"has 1 classes, but the run in .* has 2"),
        (DataIdentity(("cat", "døg"), {"train": "b"}), "the train split has changed"),
    ],
)
def test_other_data_is_refused_before_anything_changes(tmp_path, config, data, said):
    began = DataIdentity(("cat", "døg"), {"train": "a"})
    with open_run(tmp_path, config(), data=began) as run:
        run.write_result(FINISHED)
    assert json.loads((tmp_path / "classes.json").read_text()) == ["cat", "døg"]
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    longer = config(train__epochs=4)
    with (
        pytest.raises(UsageError, match=said),
        open_run(tmp_path, longer, data=data, extend=True),
    ):
        pass
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", ["classes.json", "data.json"])
def test_damaged_records_of_the_data_are_named(tmp_path, config, name):
    with open_run(tmp_path, config()) as run:
        save(run)
    for text in ("", "3", "{"):
        (tmp_path / name).write_text(text)
        with pytest.raises(UsageError, match=rf"{name} is damaged"), open_run(tmp_path, config()):
            pass


def test_a_run_that_has_saved_nothing_may_begin_otherwise(tmp_path, config):
    with open_run(tmp_path, config()) as run:
        run.checkpoints_dir.mkdir()
    changed, data = config(seed=3), DataIdentity(("cat", "dog", "owl"), {"train": "b"})
    with open_run(tmp_path, changed, data=data) as run:
        assert not run.extended
    assert load_json(tmp_path / "config.json") == changed
    assert json.loads((tmp_path / "classes.json").read_text()) == ["cat", "dog", "owl"]
    assert json.loads((tmp_path / "data.json").read_text()) == {"train": "b"}


def test_foreign_folders_are_refused_and_left_alone(tmp_path, config):
    (tmp_path / "holiday.jpg").touch()
    with (
        pytest.raises(UsageError, match=r"holds holiday\.jpg but no config\.json"),
        open_run(tmp_path, config()),
    ):
        pass
    assert tree(tmp_path) == ["holiday.jpg"]


@pytest.mark.parametrize("inside", [".", "run", "a/run"])
def test_a_file_in_its_place_is_refused(tmp_path, config, inside):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file"), open_run(tmp_path / "file" / inside, config()):
        pass
    assert tree(tmp_path) == ["file"]


def test_what_a_crash_before_the_first_config_leaves_is_taken_over(tmp_path, config):
    (tmp_path / ".lock").write_text("process 1 on elsewhere\n")
    unique_beside(tmp_path / "config.json").write_text('{"seed"')
    (tmp_path / "classes.json").write_text("[]")
    (tmp_path / "data.json").write_text("{}")
    with open_run(tmp_path, config()) as run:
        assert run.previous is None
        assert tree(tmp_path) == [".lock", "classes.json", "config.json", "data.json"]
    assert json.loads((tmp_path / "classes.json").read_text()) == ["0", "1"]


def test_a_damaged_config_is_named(tmp_path, config):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match=r"config\.json"), open_run(tmp_path, config()):
        pass


@pytest.mark.parametrize("path", ["s3://bucket/run", Path("s3://bucket/run")])
def test_other_services_are_refused(tmp_path, config, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="must be a local folder"), open_run(path, config()):
        pass
    assert tree(tmp_path) == []


def test_a_read_only_folder_is_refused(open_place, config, read_only):
    with open_run(open_place / "run", config()):
        pass
    (open_place / "run" / ".lock").chmod(0o666)
    with read_only(open_place):
        for path in (open_place / "run", open_place / "new"):
            with (
                pytest.raises(UsageError, match=r"cannot write to workdir .*Permission denied"),
                open_run(path, config()),
            ):
                pass


def test_a_second_run_in_this_process_is_refused(tmp_path, config):
    with (
        open_run(tmp_path, config()),
        pytest.raises(UsageError, match=f"process {os.getpid()} on {socket.gethostname()}"),
        open_run(tmp_path, config()),
    ):
        pass
    with open_run(tmp_path, config()):
        pass


def test_an_error_inside_lets_go(tmp_path, config):
    with pytest.raises(RuntimeError), open_run(tmp_path, config()):
        raise RuntimeError
    with open_run(tmp_path, config()):
        pass


def test_a_live_process_holds_the_folder_until_it_is_killed(tmp_path, config):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            words = re.escape(f"process {holder.pid} on {socket.gethostname()}")
            with pytest.raises(UsageError, match=words), open_run(tmp_path, config(seed=5)):
                pass
        finally:
            holder.send_signal(signal.SIGKILL)
    with open_run(tmp_path, config()) as run:
        assert run.previous is not None
