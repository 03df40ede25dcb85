import contextlib
import io
import json
import os
import signal
import subprocess
import sys

import pytest
from report.screen import Screen
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from jaxtrain.errors import CheckpointError, UsageError
from jaxtrain.report import MetricsLog, Reporter, TrainReport


@pytest.fixture
def make(tmp_path, clock):
    """Reporters of one run of 40 steps of 10 images, with what they show on `make.stream`."""

    def reporter(tensorboard=True):
        return Reporter(
            tmp_path / "metrics.jsonl",
            tmp_path / "tensorboard" if tensorboard else None,
            total_steps=40,
            batch_size=10,
            stream=reporter.stream,
            clock=clock,
            now=lambda: clock() + 1e9,
        )

    reporter.stream = io.StringIO()
    return reporter


def steps(tmp_path, tag="train/loss"):
    accumulator = EventAccumulator(str(tmp_path / "tensorboard"))
    accumulator.Reload()
    if tag not in accumulator.Tags()["scalars"]:
        return []
    return [event.step for event in accumulator.Scalars(tag)]


def test_a_run(make, tmp_path, clock):
    with make() as reporter:
        reporter.message("hello")
        with reporter.paused("compile"):
            clock.sleep(3)
        reporter.start(0)
        for step in range(1, 41):
            clock.sleep(0.5)
            reporter.tick(step)
            if step % 20 == 0:
                reporter.train(step, TrainReport(loss=1 / step, accuracy=0.5, learning_rate=0.1))
        with reporter.paused("evaluate") as batches:
            clock.sleep(30)
            batches(1, 1)
        reporter.eval(40, "test", {"loss": float("nan"), "accuracy": 0.75, "count": 10})
        reporter.flush()
        assert reporter._speed.training_seconds == 20
        assert reporter._speed.images_per_second_overall == 20
    common = {"accuracy": 0.5, "learning_rate": 0.1, "images_per_second": 20.0}
    assert MetricsLog(tmp_path / "metrics.jsonl").read() == [
        {"step": 20, "time": 1e9 + 1013, "split": "train", "loss": 0.05, **common},
        {
            "step": 40,
            "time": 1e9 + 1023,
            "split": "train",
            "loss": 0.025,
            **common,
        },
        {
            "step": 40,
            "time": 1e9 + 1053,
            "split": "test",
            "loss": None,
            "accuracy": 0.75,
            "count": 10,
        },
    ]
    assert make.stream.getvalue().splitlines() == [
        "hello",
        "compiling",
        "compiled in 3.0 s",
        "step 20/40  train  loss 0.0500  accuracy 50.00 %  20 images/s  0:10 left",
        "step 40/40  train  loss 0.0250  accuracy 50.00 %  20 images/s",
        "evaluate  1/1 batches",
        "step 40/40  test   loss nan  accuracy 75.00 %  10 examples",
    ]
    for tag in ("train/loss", "train/accuracy", "learning_rate", "images_per_second"):
        assert steps(tmp_path, tag) == [20, 40]
    for tag in ("eval/loss", "eval/accuracy"):
        assert steps(tmp_path, tag) == [40]


def test_a_resumed_run_has_each_step_once(make, tmp_path):
    for start, stop in ((0, 25), (10, 33), (20, 40)):
        with make() as reporter:
            reporter.start(start)
            for step in range(start + 5, stop + 1, 5):
                reporter.train(step, TrainReport(1.0, 0.5, 0.1))
                reporter.eval(step, "test", {"loss": 2.0, "accuracy": 0.5})
    events = MetricsLog(tmp_path / "metrics.jsonl").read()
    expected = list(range(5, 41, 5))
    assert [event["step"] for event in events if event["split"] == "train"] == expected
    assert [event["step"] for event in events if event["split"] == "test"] == expected
    assert steps(tmp_path) == expected
    assert steps(tmp_path, "eval/loss") == expected


def test_speed_counts_from_where_the_run_goes_on(make, clock):
    with make() as reporter:
        assert reporter._speed.images_per_second_overall is None
        clock.sleep(100)
        reporter.start(30)
        clock.sleep(2)
        reporter.train(34, TrainReport(1.0, 0.5, 0.1))
        assert (reporter._speed.training_seconds, reporter._speed.images_per_second_overall) == (
            2,
            20,
        )


def test_tensorboard_can_be_off_and_on_again(make, tmp_path):
    with make(tensorboard=False) as reporter:
        reporter.start(0)
        reporter.train(10, TrainReport(1.0, 0.5, 0.1))
        reporter.hparams({"seed": 0}, {"accuracy": 0.5})
    assert not (tmp_path / "tensorboard").exists()
    with make() as reporter:
        reporter.start(10)
    assert steps(tmp_path) == [10]


def test_hparams_belong_to_the_last_step(make, tmp_path):
    with make() as reporter:
        reporter.start(0)
        reporter.train(40, TrainReport(1.0, 0.5, 0.1))
        reporter.hparams({"seed": 0}, {"accuracy": 0.5})
    assert steps(tmp_path, "final/accuracy") == [40]


def test_nothing_is_written_before_the_start(make, tmp_path):
    with make() as reporter:
        reporter.message("hello")
    assert os.listdir(tmp_path) == []


def test_a_failed_compilation_is_not_said_to_be_done(make):
    with pytest.raises(RuntimeError), make() as reporter, reporter.paused("compile"):
        raise RuntimeError
    assert make.stream.getvalue() == "compiling\n"


def test_damaged_and_full_are_expected_errors(make, tmp_path, monkeypatch):
    (tmp_path / "metrics.jsonl").write_text("nonsense\n")
    with pytest.raises(UsageError, match="line 1"), make() as reporter:
        reporter.start(0)
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    monkeypatch.setattr(MetricsLog, "resume", lambda *_, **__: None)
    monkeypatch.setattr(MetricsLog, "read", lambda *_: [])
    with make() as reporter:
        reporter.start(0)
        with pytest.raises(CheckpointError, match="No space left"):
            reporter.train(1, TrainReport(1.0, 0.5, 0.1))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_leaves_the_terminal_clean(make, monkeypatch, error):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    make.stream = Screen(80)
    stderr = sys.stderr
    with contextlib.suppress(error), make() as reporter:
        reporter.start(0)
        reporter.message("hello")
        with reporter.paused("evaluate"):
            raise error
    assert make.stream.lines == ["hello", ""]
    assert make.stream.cursor == (1, 0)
    assert sys.stderr is stderr


def test_closing_twice_is_closing_once(make):
    with make() as reporter:
        reporter.start(0)
        reporter.train(1, TrainReport(1.0, 0.5, 0.1))
        reporter.train(2, TrainReport(1.0, 0.5, 0.1))
        reporter.close()
    assert make.stream.getvalue().count("step ") == 2


RUN = """
import os, signal, sys
from pathlib import Path
from jaxtrain.report import Reporter, TrainReport
folder, start, kill = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
with Reporter(folder / "metrics.jsonl", folder / "tensorboard", total_steps=40, batch_size=1) as r:
    r.start(start)
    for step in range(start + 1, 41):
        r.tick(step)
        r.train(step, TrainReport(1 / step, 0.5, 0.1))
        if step == kill:
            os.kill(os.getpid(), signal.SIGKILL)
assert not {"jax", "tensorflow"} & set(sys.modules)
"""


def test_killed_runs_show_every_step_once(tmp_path):
    for start, kill, status in ((0, 17, -signal.SIGKILL), (10, 31, -signal.SIGKILL), (30, 0, 0)):
        command = [sys.executable, "-c", RUN, tmp_path, str(start), str(kill)]
        process = subprocess.run(command, check=False, capture_output=True, text=True)
        assert process.returncode == status, process.stderr
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 41))
    assert steps(tmp_path) == list(range(1, 41))


def test_replicas_have_records_of_their_own(tmp_path, clock):
    seeds = [{"seed": 20261130}, {"seed": 20261131}]
    stream = io.StringIO()
    with Reporter(
        tmp_path / "metrics.jsonl",
        tmp_path / "tensorboard",
        total_steps=40,
        batch_size=10,
        replicas=seeds,
        stream=stream,
        clock=clock,
    ) as reporter:
        reporter.start(0)
        reporter.train(20, TrainReport(1.0, 0.5, 0.1), TrainReport(3.0, 0.7, 0.1))
        each = [
            {"loss": 1.0, "accuracy": 0.5, "count": 9},
            {"loss": 2.0, "accuracy": 0.7, "count": 9},
        ]
        reporter.eval(20, "test", *each)
        reporter.hparams({"seed": 20261130}, *each)
    events = MetricsLog(tmp_path / "metrics.jsonl").read()
    assert [(e["replica"], e["seed"], e["loss"]) for e in events] == [
        (0, 20261130, 1.0),
        (1, 20261131, 3.0),
        (0, 20261130, 1.0),
        (1, 20261131, 2.0),
    ]
    for number, seed in enumerate((20261130, 20261131)):
        board = EventAccumulator(str(tmp_path / "tensorboard" / f"seed={seed}"))
        board.Reload()
        assert [event.value for event in board.Scalars("eval/loss")] == [1.0 + number]
        assert [event.step for event in board.Scalars("final/accuracy")] == [20]
    train_line, eval_line = stream.getvalue().splitlines()
    assert "loss 2.0000  accuracy 60.00 %" in train_line
    assert "loss 1.5000  accuracy 60.00 % ± 14.14  mean of 2 replicas" in eval_line


def test_of_a_sweep_the_runs_model_is_shown_while_training(tmp_path, clock):
    stream = io.StringIO()
    with Reporter(
        tmp_path / "metrics.jsonl",
        None,
        total_steps=40,
        batch_size=10,
        replicas=[{"optimizer.b1": 0.1}, {"optimizer.b1": 0.9}],
        main=1,
        stream=stream,
        clock=clock,
    ) as reporter:
        reporter.start(0)
        reports = TrainReport(None, None, 0.1, 20), TrainReport(3.0, 0.7, 0.1, 0)
        reporter.train(20, *reports)
        reporter.train(40, *reports)
        reporter.eval(40, "test", {"loss": None, "accuracy": None}, {"loss": 1.0, "accuracy": 0.7})
    lines = stream.getvalue().splitlines()
    assert [line for line in lines if "skipped" in line] == [
        "skipped  20 updates of b1=0.1 up to step 20: the loss or a gradient was NaN or infinite"
    ]
    assert any("step 40/40  train  loss 3.0000  accuracy 70.00 %" in line for line in lines)
    assert [line for line in lines if "test" in line] == [
        "step 40/40  test   loss nan  accuracy nan  b1=0.1",
        "step 40/40  test   loss 1.0000  accuracy 70.00 %  b1=0.9",
    ]
