import os
import signal
import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2, list_session_groups
from tensorboard.plugins.hparams.backend_context import Context

from jaxtrain.errors import CheckpointError
from jaxtrain.report.tensorboard import EventWriter

TRAIN = {"loss": 0.5, "accuracy": 0.25, "learning_rate": 0.125, "images_per_second": 1000.0}


def train(step, **values):
    return {"step": step, "time": 100.0 + step, "split": "train", **TRAIN, **values}


def evaluation(step, split="test"):
    values = {"loss": 2.0, "accuracy": 0.75, "count": 10}
    return {"step": step, "time": 100.5 + step, "split": split, **values}


def write(folder, events, started=1000.0):
    writer = EventWriter(folder, events, started, "run")
    writer.close()


def scalars(folder):
    """What TensorBoard shows: tag to (wall time, step, value)."""
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {
        tag: [(event.wall_time, event.step, event.value) for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


def steps(folder, tag="train/loss"):
    return [step for _, step, _ in scalars(folder)[tag]]


def names(folder):
    return sorted(os.listdir(folder))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "tensorboard"


def test_an_evaluation_on_the_training_split_is_an_evaluation(folder):
    write(folder, [train(10), evaluation(10, split="train")])
    found = scalars(folder)
    assert found["train/loss"] == [(110.0, 10, 0.5)]
    assert found["eval/loss"] == [(110.5, 10, 2.0)]


def test_scalars_are_shown_as_they_are_written(folder):
    writer = EventWriter(folder, [], 1000.0, "run")
    writer.write(train(10))
    writer.write(evaluation(10))
    writer.write(train(20, loss=0.25))
    assert scalars(folder) == {
        "train/loss": [(110.0, 10, 0.5), (120.0, 20, 0.25)],
        "train/accuracy": [(110.0, 10, 0.25), (120.0, 20, 0.25)],
        "learning_rate": [(110.0, 10, 0.125), (120.0, 20, 0.125)],
        "images_per_second": [(110.0, 10, 1000.0), (120.0, 20, 1000.0)],
        "eval/loss": [(110.5, 10, 2.0)],
        "eval/accuracy": [(110.5, 10, 0.75)],
    }
    writer.close()


def test_another_split_is_shown_as_eval_too(folder):
    write(folder, [evaluation(5, split="holdout")])
    assert scalars(folder)["eval/loss"] == [(105.5, 5, 2.0)]


def test_what_was_not_finite_is_nan(folder):
    write(folder, [train(1, loss=None)])
    assert str(scalars(folder)["train/loss"]) == "[(101.0, 1, nan)]"


def test_a_rebuilt_file_has_the_old_times_and_replaces_the_old(folder):
    write(folder, [train(1), train(2), train(3)])
    (old,) = names(folder)
    writer = EventWriter(folder, [train(1), train(2)], 2000.0, "run")
    writer.write(train(3, loss=7.0))
    writer.close()
    assert scalars(folder)["train/loss"] == [(101.0, 1, 0.5), (102.0, 2, 0.5), (103.0, 3, 7.0)]
    assert (folder / old).stat().st_size == 0
    write(folder, [train(1)])
    assert old not in names(folder)
    assert steps(folder) == [1]


def test_the_newest_file_is_last_even_if_the_clock_went_back(folder):
    for started in (1000.0, 1000.0, 1.0):
        write(folder, [train(1)], started)
        newest = names(folder)[-1]
        assert (folder / newest).stat().st_size > 0
    assert steps(folder) == [1]


def test_a_crash_before_the_old_file_is_retired_shows_each_step_once(folder, monkeypatch):
    write(folder, [train(1), train(2), train(3)])
    monkeypatch.setattr("jaxtrain.report.tensorboard._retire", lambda path: None)
    write(folder, [train(1), train(2)], 2000.0)
    assert len(names(folder)) == 2
    assert steps(folder) == [1, 2]
    monkeypatch.undo()
    write(folder, [train(1), train(2)], 3000.0)
    assert steps(folder) == [1, 2]


def test_a_crash_before_the_new_file_is_in_place_shows_the_old_one(folder, monkeypatch):
    write(folder, [train(1), train(2)])

    def crash(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(KeyboardInterrupt):
        write(folder, [train(1)])
    assert steps(folder) == [1, 2]
    monkeypatch.undo()
    write(folder, [train(1)])
    assert steps(folder) == [1]
    assert all("tfevents" in name for name in names(folder))


def test_a_running_viewer_sees_each_step_once(folder):
    write(folder, [train(1), train(2), train(3)])
    viewer = EventMultiplexer(tensor_size_guidance={"scalars": 0})
    viewer.AddRunsFromDirectory(str(folder.parent))

    def seen():
        viewer.Reload()
        return [event.step for event in viewer.Tensors("tensorboard", "train/loss")]

    assert seen() == [1, 2, 3]
    writer = EventWriter(folder, [train(1)], 2000.0, "run")
    assert seen() == [1]
    writer.write(train(2))
    assert seen() == [1, 2]
    writer.close()


def test_hparams_are_shown_with_the_final_metrics(folder):
    config = {"seed": 3, "name": "adam", "lr": 0.5, "on": True, "sizes": (5, 2), "path": None}
    writer = EventWriter(folder, [train(1)], 1000.0, "run")
    writer.hparams(config, {"accuracy": 0.75, "count": 10, "split": "test"}, step=4, time=1500.0)
    writer.close()
    viewer = EventMultiplexer()
    viewer.AddRunsFromDirectory(str(folder.parent))
    viewer.Reload()
    provider = MultiplexerDataProvider(viewer, str(folder.parent))
    context = Context(TBContext(data_provider=provider))
    request = RequestContext()
    groups = list_session_groups.Handler(
        request,
        context,
        "",
        api_pb2.ListSessionGroupsRequest(
            allowed_statuses=[api_pb2.STATUS_SUCCESS], start_index=0, slice_size=10
        ),
    ).run()
    (group,) = groups.session_groups
    assert group.hparams["seed"].number_value == 3
    assert group.hparams["lr"].number_value == 0.5
    assert group.hparams["name"].string_value == "adam"
    assert group.hparams["on"].bool_value is True
    assert group.hparams["sizes"].string_value == "(5, 2)"
    assert group.hparams["path"].string_value == "None"
    finals = {value.name.tag: (value.training_step, value.value) for value in group.metric_values}
    assert finals["final/accuracy"] == (4, 0.75)
    assert finals["final/count"] == (4, 10)
    assert finals["train/loss"] == (1, 0.5)
    assert "final/split" not in finals
    (session,) = group.sessions
    assert (session.start_time_secs, session.end_time_secs) == (1000.0, 1500.0)


KILLED = """
import os, signal, sys
from pathlib import Path
from jaxtrain.report.tensorboard import EventWriter
writer = EventWriter(Path(sys.argv[1]), [], 1.0, "run")
event = {"step": 1, "time": 2.0, "split": "test", "loss": 3.0, "accuracy": 0.5}
writer.write(event)
assert "tensorflow" not in sys.modules
writer.hparams({"seed": 1}, {"loss": 3.0}, step=1, time=2.0)
assert "tensorflow" not in sys.modules and "jax" not in sys.modules
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_loses_nothing_and_never_imports_tensorflow(folder, tmp_path):
    # One that could be imported, wherever tensorboard would look for it.
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").touch()
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.run(
        [sys.executable, "-c", KILLED, folder],
        env={**os.environ, "PYTHONPATH": path},
        check=False,
        capture_output=True,
        text=True,
    )
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert scalars(folder)["eval/loss"] == [(2.0, 1, 3.0)]
    assert scalars(folder)["final/loss"] == [(2.0, 1, 3.0)]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"cannot write TensorBoard events to .*file"):
        EventWriter(tmp_path / "file", [], 1.0, "run")
