"""Several models of one run, from training to an export."""

import json
import shutil
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from e2e.command import Command, read_arrays, read_metrics, read_series, together
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

RUN = ["--config=digits.py", "--config.checkpoint.every_steps=8"]
SEEDS = [*RUN, "--config.train.replicas=2", "--workdir=runs/seeds"]
RATE = "optimizer.learning_rate"
SWEEP = [*RUN, f"--config.train.replicate={RATE}=1e-3,1e-2,1e30", "--workdir=runs/sweep"]


@pytest.fixture(scope="module")
def command(new_command: Callable[[], Command]) -> Command:
    return new_command()


@pytest.fixture(scope="module")
def trained(command: Command) -> Path:
    together(partial(command.result, "train", *SEEDS), partial(command.result, "train", *SWEEP))
    return command.folder / "runs"


def result_of(run: Path) -> dict:
    return json.loads((run / "result.json").read_text())


def test_the_models_are_those_of_their_seeds(command: Command, trained: Path) -> None:
    result = result_of(trained / "seeds")
    found = result["replicas"]
    assert found["seed"] == [0, 1]
    alone = together(
        *(
            partial(command.result, "train", *RUN, f"--config.seed={k}", f"--workdir=runs/{k}")
            for k in range(2)
        )
    )
    for part in ("train", "eval"):
        for name in ("loss", "accuracy"):
            of = found[part][name]
            assert of["values"] == pytest.approx([one[part][name] for one in alone], rel=1e-5)
            assert of["mean"] == pytest.approx(statistics.fmean(of["values"]))
            assert of["deviation"] == pytest.approx(statistics.stdev(of["values"]))
            assert result[part][name] == of["values"][0]


def test_a_sweep_has_values_and_a_picture(trained: Path) -> None:
    run = trained / "sweep"
    found = result_of(run)["replicas"]
    assert found[RATE] == [1e-3, 1e-2, 1e30]
    assert set(found["eval"]["loss"]) == {"values"}
    *finite, diverged = found["eval"]["loss"]["values"]
    assert diverged is None
    assert finite[0] > finite[1]
    assert found["skipped"]["values"][:2] == [0, 0]
    assert found["skipped"]["values"][2] > 0
    picture = np.asarray(Image.open(run / "sweep.png").convert("L"))
    assert picture.std() > 10


def test_every_model_has_its_events(trained: Path) -> None:
    events = read_metrics(trained / "seeds")
    assert [(event["replica"], event["seed"]) for event in events[:2]] == [(0, 0), (1, 1)]
    assert [event["step"] for event in events if event["split"] == "train"] == [
        step for step in (5, 10, 15, 20) for _ in range(2)
    ]
    assert {path.name for path in (trained / "sweep/tensorboard").iterdir()} == {
        f"learning_rate={value}" for value in ("0.001", "0.01", "1e+30")
    }
    for k in range(2):
        own = [e["loss"] for e in events if e["replica"] == k and "learning_rate" in e]
        board = EventAccumulator(str(trained / f"seeds/tensorboard/seed={k}"))
        board.Reload()
        shown = board.Scalars("train/loss")
        assert [event.value for event in shown] == pytest.approx(own)


def test_they_go_on_bit_for_bit(command: Command, trained: Path) -> None:
    run, again = trained / "seeds", trained / "again"
    shutil.copytree(run, again)
    (again / "result.json").unlink()
    for step in (16, 20):
        shutil.rmtree(again / "checkpoints" / str(step))
    command.result("train", "--workdir=runs/again")
    expected, found = read_arrays(run), read_arrays(again)
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    for one, other in zip(read_metrics(run), read_metrics(again), strict=True):
        for name in ("step", "split", "replica", "loss", "accuracy"):
            assert one[name] == other[name]


def test_they_go_on_on_other_devices(command: Command, trained: Path) -> None:
    run, again = trained / "seeds", trained / "spread"
    shutil.copytree(run, again)
    (again / "result.json").unlink()
    for step in (16, 20):
        shutil.rmtree(again / "checkpoints" / str(step))
    command.result("train", "--workdir=runs/spread", devices=4)
    expected, found = result_of(run)["replicas"], result_of(again)["replicas"]
    for of in ("loss", "accuracy"):
        values = expected["eval"][of]["values"]
        assert found["eval"][of]["values"] == pytest.approx(values, rel=1e-4)


def test_eval_counts_them_all(command: Command, trained: Path) -> None:
    expected = result_of(trained / "seeds")
    first, second, swept = together(
        partial(command.result, "eval", "--workdir=runs/seeds"),
        partial(command.result, "eval", "--workdir=runs/seeds", "--config.train.export_replica=1"),
        partial(command.result, "eval", "--workdir=runs/sweep", "--config.train.export_replica=2"),
    )
    for found in (first, second):
        assert found["replicas"]["eval"] == expected["replicas"]["eval"]
    assert first["eval"] == expected["eval"]
    assert second["eval"]["loss"] == expected["replicas"]["eval"]["loss"]["values"][1]
    of_sweep = result_of(trained / "sweep")["replicas"]["eval"]
    assert swept["replicas"]["eval"] == of_sweep
    assert swept["eval"]["loss"] is None  # that which diverged
    files = {path.name for path in (trained / "seeds/eval").iterdir()}
    assert files == {"test-20.json", "test-20-replica1.json"}


def test_one_model_is_used_and_exported(command: Command, trained: Path, digits: Path) -> None:
    images = digits / "t10k-images-idx3-ubyte"
    words = ("--workdir=runs/seeds", str(images), "--config.eval.batch_size=50")

    def rows(*more: str) -> str:
        done = command("predict", *words, *more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    export = ("export", "--workdir=runs/seeds", "--format=stablehlo")
    command.result(*export)
    command.result(*export, "--config.train.export_replica=1")
    zero, one = (f"runs/seeds/export/stablehlo-20{which}" for which in ("", "-replica1"))
    first, second = rows(), rows("--config.train.export_replica=1")
    assert first != second
    for folder, expected in ((zero, first), (one, second)):
        done = command("predict", f"--exported={folder}", str(images))
        assert [line.split(",")[:2] for line in done.stdout.splitlines()] == [
            line.split(",")[:2] for line in expected.splitlines()
        ]
    said = json.loads((command.folder / one / "config.json").read_text())
    assert said["train"]["export_replica"] == 1
    result = command.result("eval", "--workdir=runs/seeds", f"--exported={one}")
    values = result_of(trained / "seeds")["replicas"]["eval"]["loss"]["values"]
    assert result["eval"]["loss"] == pytest.approx(values[1], rel=1e-5)
    assert (trained / "seeds/eval/test-20-stablehlo-replica1.json").exists()


def test_a_run_starts_from_one_of_them(command: Command, trained: Path) -> None:
    start = ["--config=digits.py", "--config.model.init_from=runs/seeds", "--config.train.steps=1"]
    command.result("train", *start, "--config.optimizer.learning_rate=1e-12", "--workdir=runs/on")
    arrays = read_arrays(trained / "on")
    theirs = read_arrays(trained / "seeds")
    kernels = [name for name in arrays if "params" in name and "kernel" in name]
    assert kernels
    for name in kernels:
        np.testing.assert_allclose(arrays[name], theirs[name][0], atol=1e-9)


def test_examples_are_not_listed_by_what_diverged(command: Command, trained: Path) -> None:
    for words in (["--predictions=none.csv"], ["--hardest=3"]):
        done = command(*("eval", "--workdir=runs/sweep", "--config.train.export_replica=2", *words))
        assert done.returncode == 4
        assert "take another with --config.train.export_replica" in done.stderr
    assert not (command.folder / "none.csv").exists()
    kept = json.loads((trained / "sweep/eval/test-20-replica2.json").read_text())
    assert "classes" not in kept
    assert kept["eval"]["accuracy"] is None


def test_a_finished_sweep_draws_its_picture_again(command: Command, trained: Path) -> None:
    picture = trained / "sweep/sweep.png"
    picture.unlink()
    command.result("train", "--workdir=runs/sweep")
    assert picture.exists()
    again = trained / "sweep-without-log"
    shutil.copytree(trained / "sweep", again)
    for name in ("sweep.png", "metrics.jsonl", "result.json"):
        (again / name).unlink()
    command.result("train", "--workdir=runs/sweep-without-log")
    assert not (again / "sweep.png").exists()


def test_another_model_is_not_another_training(command: Command, trained: Path) -> None:
    said = command.refused("train", "--workdir=runs/seeds", "--config.train.export_replica=1")
    assert "give it to eval, predict or export instead" in said


def test_a_model_that_is_not_there_is_refused(command: Command, trained: Path) -> None:
    said = command.refused(
        "train",
        "--config=digits.py",
        "--config.train.replicas=2",
        "--config.train.export_replica=2",
    )
    assert "export_replica=2 must be below 2" in said
    done = command("eval", "--workdir=runs/seeds", "--config.train.export_replica=2")
    assert done.returncode == 2
    assert "export_replica=2 must be below 2" in done.stderr


def test_a_loss_that_is_not_finite_names_its_model(command: Command) -> None:
    done = command(
        *("train", *RUN, "--config.train.replicas=2", "--config.optimizer.learning_rate=1e30"),
        "--workdir=runs/bad",
    )
    assert done.returncode == 4
    assert "of the replica with seed=0 is NaN or infinite at step" in done.stderr


def test_the_scalars_of_one_model_stay_where_they_were(command: Command, trained: Path) -> None:
    command.result("train", *RUN, "--workdir=runs/0")
    assert [step for step, _ in read_series(trained / "0")["train/loss"]] == [5, 10, 15, 20]
