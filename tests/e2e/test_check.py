"""What `jaxtrain check` says is what a run then does."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from e2e.command import (
    Command,
    Completed,
    error,
    read_arrays,
    read_metrics,
    result,
    saved_steps,
    steps_of,
)
from e2e.digits import first_digits

from jaxtrain.config import key_docs
from jaxtrain.data import Sampler

WORDS = [
    "--config=digits.py",
    "--config.schedule.name=cosine",
    "--config.schedule.warmup_steps=4",
    "--config.report.every_steps=1",
    "--config.eval.every_steps=6",
    "--config.checkpoint.every_steps=5",
    "--config.checkpoint.keep=9",
]
MNIST = ["check", "--config=mnist_mlp"]

CALLS: dict[str, list[str]] = {
    "text": [*MNIST, "--batch=4688"],
    "keys": [*MNIST, "--config.seed=7", "--print_config"],
    "json": ["check", *WORDS, "--json", "--batch=13"],
    "devices": [*MNIST, "--devices=7"],
    "bad_json": ["check", *WORDS, "--json", "--config.model.mlp.activation=swich"],
    "bad_warmup": ["check", *WORDS, "--config.schedule.warmup_steps=19"],
    "no_such_step": ["check", *WORDS, "--batch=21"],
}


@pytest.fixture(scope="module")
def command(new_command: Callable[[], Command]) -> Command:
    return new_command()


@pytest.fixture(scope="module")
def said(command: Command) -> dict[str, Completed]:
    """Each call, finished; nothing was written."""
    before = sorted(command.folder.rglob("*"))
    done = command.in_turn(*CALLS.values())
    assert sorted(command.folder.rglob("*")) == before
    return dict(zip(CALLS, done, strict=True))


@pytest.fixture(scope="module")
def report(said: dict[str, Completed]) -> dict[str, Any]:
    return result(said["json"])


def test_the_report_for_a_person(said: dict[str, Completed]) -> None:
    done = said["text"]
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    fields = {line.split()[0]: line for line in lines if line and line[0] != " "}
    assert "60,000 train, 10,000 test" in fields["data"]
    assert any(line.split() == ["3", "6,131", "1,010"] for line in lines)
    assert "4,688 of 128 images" in fields["steps"]
    assert "cosine ▁" in fields["schedule"]
    assert any(line.split()[:2] == ["hidden_0", "Dense"] for line in lines)
    assert "mlp: 407,050 parameters" in fields["model"]
    assert "parameters 1,628,200 bytes" in fields["memory"]
    assert fields["devices"].split(maxsplit=1)[1] == (
        "1: 128 images a step on each; up to 10 steps in one go"
    )
    assert "step 4688" in fields["batch"]
    assert lines[-1] == "verdict     ok: mnist_mlp would train 4,688 steps on 1 device"


def test_where_each_value_came_from(said: dict[str, Completed]) -> None:
    done = said["keys"]
    assert (done.returncode, done.stderr) == (0, "")
    lines = {line.split(" = ")[0]: line for line in done.stdout.splitlines() if " = " in line}
    assert set(key_docs()) <= set(lines)
    for name, value, source in [
        ("seed", "7", "command line"),
        ("model.mlp.hidden_sizes", "(512,)", "configs/mnist_mlp.py"),
        ("checkpoint.keep", "3", "default"),
    ]:
        assert lines[name].startswith(f"{name} = {value} ")
        assert lines[name].endswith(f"# {source}: {key_docs()[name].doc}")


def test_the_report_agrees_with_the_run(command: Command, report: dict[str, Any]) -> None:
    summary = command.result("train", *WORDS, "--workdir=run")
    workdir = command.folder / "run"
    assert report["ok"] is True
    steps = report["steps"]
    assert (steps["total"], steps["epochs"], steps["per_epoch"]) == (summary["step"], 0.8, 25)
    assert steps["evaluations"] == len(steps_of(workdir, "test")) == 4
    assert steps["checkpoints"] == len(saved_steps(workdir)) == 4
    arrays = read_arrays(workdir)
    parameters = {name: array for name, array in arrays.items() if name.startswith("model")}
    optimizer = [array for name, array in arrays.items() if "opt_state" in name]
    model = report["model"]
    assert model["parameters"] == sum(array.size for array in parameters.values()) == 25_450
    assert model["parameter_bytes"] == sum(array.nbytes for array in parameters.values())
    assert model["optimizer_bytes"] == sum(array.nbytes for array in optimizer)
    assert sorted(tuple(array["shape"]) for array in model["arrays"]) == sorted(
        array.shape for array in parameters.values()
    )
    rates = {point["step"]: point["rate"] for point in report["schedule"]["points"]}
    trained = [event for event in read_metrics(workdir) if event["split"] == "train"]
    assert rates == {event["step"]: pytest.approx(event["learning_rate"]) for event in trained}
    meta = json.loads((workdir / "checkpoints/20/meta/data.json").read_text())
    for split, name in (("train", "train"), ("test", "eval")):
        assert report["data"][split]["fingerprint"] == meta["data"][name]
    assert report["data"]["test"]["examples"] == summary["eval"]["count"] == 200
    assert sum(report["data"]["train"]["per_class"]) == 1000


def test_a_batch_is_the_one_that_is_trained_on(report: dict[str, Any]) -> None:
    indices = Sampler(1000, 40, seed=0).indices(13)
    labels = first_digits("train", 1000)[1]
    assert report["batch"] == {
        "step": 13,
        "indices": indices.tolist(),
        "labels": labels[indices].tolist(),
    }


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("devices", "train.batch_size=128 does not divide over 7 devices; try 126 or 133"),
        ("bad_warmup", "schedule.warmup_steps=19 does not fit the 20 steps of the run"),
    ],
)
def test_what_would_fail(said: dict[str, Completed], name: str, verdict: str) -> None:
    done = said[name]
    assert (done.returncode, done.stderr) == (2, "")
    verdicts = [line for line in done.stdout.splitlines() if line.startswith("verdict")]
    assert verdicts == done.stdout.splitlines()[-1:]
    assert verdicts[0].startswith(f"verdict     would fail: {verdict}")


def test_a_step_that_is_not_there_is_no_fault_of_the_run(said: dict[str, Completed]) -> None:
    done = said["no_such_step"]
    assert error(done, 2).endswith("--batch=21 is outside the run's steps 1..20")
    assert done.stdout == ""


def test_what_would_fail_as_json(said: dict[str, Completed]) -> None:
    done = said["bad_json"]
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (2, "", 1)
    told = json.loads(done.stdout)
    assert told["ok"] is False
    assert "model.mlp.activation" in told["verdict"]
    assert "swish" in told["verdict"]
