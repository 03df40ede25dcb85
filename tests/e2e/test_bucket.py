"""A run whose folder is in a bucket, served by an emulator on this machine."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bucket_service import Service, serve
from e2e.command import (
    Command,
    error,
    read_arrays,
    read_metrics,
    read_series,
    result,
    saved_steps,
    steps_of,
    together,
)
from e2e.pod import ended, started

WORDS = [
    "train",
    "--config=digits.py",
    "--config.train.steps=60",
    "--config.report.every_steps=7",
    "--config.eval.every_steps=20",
    "--config.checkpoint.every_steps=15",
]
RUN = "--workdir=gs://bucket/{}"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serve() as running:
        yield running


@pytest.fixture(scope="module")
def command(new_command: Callable[[], Command]) -> Command:
    return new_command()


@pytest.fixture(scope="module")
def whole(command: Command) -> dict[str, Any]:
    """The result of the same run in a local folder, which nobody disturbed."""
    return command.result(*WORDS, "--workdir=whole")


@pytest.fixture(scope="module")
def killed(command: Command, service: Service, whole: dict[str, Any]) -> dict[str, Any]:
    """The result of a run in the bucket that was killed twice."""
    words = [*WORDS, RUN.format("killed")]
    for there in (r"config\.json", r"checkpoints/\d+/commit_success\.txt"):
        with command.start(*words, environment=service.environment) as process:
            wait_for(service, "killed", there, process)
            process.kill()
            process.communicate()
        assert ".lock" in service.names("killed")
    last = command(*words, environment=service.environment)
    assert re.search(r"going on from step (15|30|45) to 60", last.stderr), last.stderr
    assert f"evaluate it:  jaxtrain eval {RUN.format('killed')}\n" in last.stderr
    return result(last)


def wait_for(service: Service, run: str, pattern: str, process: subprocess.Popen[str]) -> None:
    """Returns as soon as there is such an object, while the process lives."""
    deadline = time.monotonic() + 60
    while not any(re.fullmatch(pattern, name) for name in service.names(run)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline


def numbers(run: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what a clock says."""
    return [event | {"time": 0, "images_per_second": 0} for event in read_metrics(run)]


def test_a_killed_run_ends_as_one_that_nobody_disturbed(
    command: Command, service: Service, whole: dict[str, Any], killed: dict[str, Any]
) -> None:
    assert killed | {"seconds": 0} == whole | {"seconds": 0}
    run = service.download("killed", command.folder / "copy")
    local = command.folder / "whole"
    assert numbers(run) == numbers(local)
    series, expected = read_series(run), read_series(local)
    for tags in (series, expected):
        tags.pop("images_per_second", None)
    assert series == expected
    assert saved_steps(run) == saved_steps(local)
    arrays, others = read_arrays(run), read_arrays(local)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name], err_msg=name, strict=True)
    assert json.loads((run / "result.json").read_text()) == killed
    assert not (run / ".lock").exists()
    assert not list(command.folder.glob("gs:*"))


def test_a_finished_run_is_printed_again_and_evaluated(
    command: Command, service: Service, killed: dict[str, Any]
) -> None:
    before = service.names("killed")
    alone, evaluated = together(
        partial(command, "train", RUN.format("killed"), environment=service.environment),
        partial(
            command,
            *("eval", RUN.format("killed"), "--hardest=3"),
            environment=service.environment,
        ),
    )
    assert result(alone) == killed
    assert "this run is finished" in alone.stderr
    assert result(evaluated)["eval"] == killed["eval"]
    assert result(evaluated)["workdir"] == "gs://bucket/killed"
    names = [f"eval/test-60{end}" for end in ("-hardest-loss.csv", "-hardest-loss.png", ".json")]
    assert sorted({*before, *names}) == service.names("killed")
    hardest = result(evaluated)["hardest"]
    assert hardest["table"] == "gs://bucket/killed/eval/test-60-hardest-loss.csv"
    assert service.read("killed/eval/test-60-hardest-loss.csv").count(b"\r\n") == 4
    assert service.read("killed/eval/test-60-hardest-loss.png").startswith(b"\x89PNG")
    stored = json.loads(service.read("killed/eval/test-60.json"))
    assert (stored["eval"], stored["hardest"]) == (killed["eval"], hardest)


def test_a_run_there_is_used_and_exported_here(
    command: Command, service: Service, killed: dict[str, Any], digits: Path
) -> None:
    run = RUN.format("killed")
    words = ("--format=stablehlo", "--output=from-bucket")
    refused, exported, predicted = together(
        partial(command, "export", run, words[0], environment=service.environment),
        partial(command, "export", run, *words, environment=service.environment),
        partial(
            command,
            "predict",
            run,
            str(digits / "t10k-images-idx3-ubyte"),
            environment=service.environment,
        ),
    )
    assert refused.returncode == 2
    assert "gs://bucket/killed cannot hold an export; give --output=PATH" in refused.stderr
    assert result(exported)["step"] == killed["step"]
    assert (command.folder / "from-bucket" / "verification.json").is_file()
    assert predicted.returncode == 0, predicted.stderr
    assert predicted.stdout.count("\n") == 1 + killed["eval"]["count"]


def test_a_damaged_step_is_set_aside(
    command: Command, service: Service, killed: dict[str, Any]
) -> None:
    for name in service.names("killed"):
        if not name.startswith("eval") and name != "result.json":
            service.write(f"damaged/{name}", service.read(f"killed/{name}"))
    arrays = [n for n in service.names("damaged") if re.match("checkpoints/60/model/.*/d/", n)]
    for name in arrays:
        service.write(f"damaged/{name}", b"")
    refused = command("eval", RUN.format("damaged"), environment=service.environment)
    assert "checkpoint gs://bucket/damaged/checkpoints/60 cannot be read" in error(refused, 5)
    done = command("train", RUN.format("damaged"), environment=service.environment)
    assert "it was set aside as gs://bucket/damaged/checkpoints/60.damaged" in done.stderr
    assert "going on from step 45" in done.stderr
    again = command("train", RUN.format("damaged"), environment=service.environment)
    assert result(again)["eval"] == killed["eval"]
    kept = {name.split("/")[1] for name in service.names("damaged") if "checkpoints/" in name}
    assert kept == {"30", "45", "60", "60.damaged"}


def test_a_second_live_run_is_refused_and_a_stopped_one_lets_go(
    command: Command, service: Service
) -> None:
    words = [*WORDS, "--config.train.steps=1000000", RUN.format("live")]
    with command.start(*words, environment=service.environment) as first:
        wait_for(service, "live", r"checkpoints/\d+/commit_success\.txt", first)
        second = command(*words, environment=service.environment)
        said = error(second, 2)
        assert re.fullmatch(
            f"workdir gs://bucket/live is held by a live run, process {first.pid} on "
            f"{re.escape(socket.gethostname())}; .*",
            said,
        )
        first.send_signal(signal.SIGTERM)
        out, said = first.communicate(timeout=60)
    assert (first.returncode, out) == (75, "")
    stopped = re.search(
        r"stopped after step (\d+) of 1000000, which is saved; go on with: jaxtrain train "
        r"--workdir=gs://bucket/live\n$",
        said,
    )
    assert stopped is not None, said
    assert ".lock" not in service.names("live")
    events = [json.loads(line) for line in service.read("live/metrics.jsonl").splitlines()]
    trained = [event["step"] for event in events if event["split"] == "train"]
    assert trained == list(range(7, int(stopped[1]) + 1, 7))


def test_several_processes_share_a_run_there(
    command: Command, service: Service, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in service.environment.items():
        monkeypatch.setenv(name, value)
    words = [*WORDS, RUN.format("pod")]
    fsdp = ["--config.parallel.mesh=fsdp=-1", "--config.parallel.rules=fsdp"]
    with started(command, 2, *words, "--config.train.steps=30", *fsdp) as processes:
        first, other = ended(processes)
    assert result(first)["step"] == 30, other.stderr
    assert (other.returncode, other.stdout) == (0, "")
    done = command(*words, "--extend")
    assert "going on from step 30 to 60" in done.stderr
    assert result(done)["eval"]["loss"] == pytest.approx(whole["eval"]["loss"], rel=1e-5)
    run = service.download("pod", command.folder / "pod")
    assert steps_of(run, "test") == [20, 30, 40, 60]
    assert saved_steps(run) == [30, 45, 60]


CLOSED = {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:9"}
NOBODY = {"NO_GCE_CHECK": "true", "HOME": "/nonexistent", "GOOGLE_APPLICATION_CREDENTIALS": ""}
WITHOUT = """
import sys
sys.modules["gcsfs"] = None
from jaxtrain.cli import entry
entry()
"""


def test_what_is_not_to_be_reached_is_said_within_seconds(
    command: Command, service: Service
) -> None:
    cases: list[tuple[dict[str, Any], list[str], str]] = [
        ({"environment": CLOSED}, [], r"gs://bucket cannot be reached: .*Connection refused; .*"),
        (
            {"environment": NOBODY},
            [],
            "gs://bucket cannot be used: no credentials .*; run gcloud "
            "auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS",
        ),
        (
            {"environment": service.environment},
            ["--workdir=gs://absent/run"],
            "gs://absent does not exist; .*",
        ),
        (
            {"program": [sys.executable, "-c", WITHOUT]},
            [],
            r"gs://bucket cannot be used: the "
            r"extra gcs is not installed .*; run pip install 'jaxtrain\[gcs\]'",
        ),
    ]
    before = sorted(command.folder.iterdir())
    for options, more, said in cases:
        for verb in (WORDS, ["eval"]):
            began = time.monotonic()
            message = command.refused(*verb, RUN.format("run"), *more, **options)
            assert re.fullmatch(said, message)
            assert time.monotonic() - began < 20
    assert sorted(command.folder.iterdir()) == before
