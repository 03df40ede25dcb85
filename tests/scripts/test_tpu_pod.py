"""`scripts/tpu.sh` from beginning to end: four workers that train MNIST with jaxtrain itself."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import compiling
import pytest
from e2e.command import read_metrics, steps_of
from e2e.digits import TEST, write_digits, write_recipe
from scripts.cloud import Cloud, Completed, checkout, finish, wait_until

pytestmark = pytest.mark.slow
WORKERS = 4
STEPS = 400
WORDS = ("train", "--config=digits.py", "--follow")
KEYS = ("--", f"--config.train.steps={STEPS}", "--config.checkpoint.every_steps=100")


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """A VM that tpu.sh has created and set up, from a copy of this checkout."""
    folder = tmp_path_factory.mktemp("pod")
    pod = Cloud(folder / "cloud", WORKERS, checkout(folder / "checkout", everything=True))
    pod.set(
        environment={  # compilations are quick, and taken from earlier runs
            "XLA_FLAGS": compiling.QUICKLY,
            "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    )
    write_digits(pod.folder / "data")
    write_recipe(pod.folder, pod.folder / "data")
    made = pod("create", "--accelerator_type=v5litepod-16")
    assert made.returncode == 0, made.stderr
    done = pod("setup", "--config=digits.py", "--extras=")
    assert done.returncode == 0, done.stdout + done.stderr
    (pod.folder / "setup.log").write_text(done.stdout)
    yield pod
    pod.clean_up()


def result(done: Completed) -> dict[str, object]:
    """The result that process 0 printed last, and only it."""
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("worker 0: {")]
    (line,) = lines
    found: dict[str, object] = json.loads(line.removeprefix("worker 0: "))
    del found["seconds"]
    return found


@pytest.fixture(scope="module")
def whole(pod: Cloud) -> dict[str, object]:
    """The result of a run that nobody disturbed, in the folder `whole`."""
    return result(pod(*WORDS, f"--workdir={pod.folder / 'whole'}", *KEYS))


def test_setup_installs_this_checkout_on_each_worker_and_says_versions(pod: Cloud) -> None:
    said = (pod.folder / "setup.log").read_text()
    for worker in range(WORKERS):
        assert re.search(rf"^worker {worker}: jaxtrain [\d.]+, python 3\S+, jax \S+,", said, re.M)
        packages = list(pod.place(worker).glob("venv/lib/python*/site-packages/jaxtrain/cli"))
        assert len(packages) == 1


def test_four_workers_train_as_one(pod: Cloud, whole: dict[str, object]) -> None:
    assert whole["status"] == "finished"
    assert whole["step"] == STEPS
    evaluation = whole["eval"]
    assert isinstance(evaluation, dict)
    assert evaluation["count"] == TEST
    assert evaluation["accuracy"] > 0.7
    assert "on 4 cpu devices of 4 processes" in pod.log(0)
    assert '"status"' not in "".join(pod.log(worker) for worker in range(1, WORKERS))
    done = pod("status")
    assert done.stdout == "".join(f"worker {k}: finished with status 0\n" for k in range(WORKERS))


def test_a_preempted_run_starts_again_and_ends_the_same(
    pod: Cloud, whole: dict[str, object]
) -> None:
    """One worker alone is told to stop: all save the same step, and go on from there."""
    workdir = pod.folder / "preempted"
    process = pod.start(*WORDS, "--retries=1", f"--workdir={workdir}", *KEYS)
    wait_until(lambda: at_step(workdir, 50), seconds=150)
    pod.kill(2)
    done = finish(process)
    assert result(done) == whole
    assert done.stderr.endswith("it ended with status 75; starting it again, 1 of 1\n")
    stopped = (pod.place(0) / "run" / "log.previous").read_text()
    step = int(re.search(r"stopped after step (\d+) of", stopped).group(1))
    assert 50 <= step < STEPS
    assert f"going on from step {step} to {STEPS}" in pod.log(0)
    assert steps_of(workdir, "train") == steps_of(pod.folder / "whole", "train")


def at_step(workdir: Path, step: int) -> bool:
    path = workdir / "metrics.jsonl"
    return path.exists() and any(event["step"] >= step for event in read_metrics(workdir))


def test_a_killed_worker_ends_the_others_which_say_so(pod: Cloud) -> None:
    workdir = pod.folder / "killed"
    keys = (*KEYS, "--config.parallel.peer_timeout_seconds=10", "--config.train.steps=100000")
    process = pod.start(*WORDS, f"--workdir={workdir}", *keys)
    wait_until(lambda: at_step(workdir, 50), seconds=150)
    pod.kill(3, signal.SIGKILL)
    done = finish(process)
    assert done.returncode == 137
    assert "tpu.sh: error: status 137 on worker 3; ending the others\n" in done.stderr
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids(pod))


def pids(pod: Cloud) -> list[int]:
    return [int((pod.place(k) / "run" / "pid").read_text()) for k in range(WORKERS)]


def test_stop_saves_and_delete_ends(pod: Cloud) -> None:
    """Started without following; stopped by hand."""
    workdir = pod.folder / "stopped"
    started = pod("train", "--config=digits.py", f"--workdir={workdir}", *KEYS)
    assert started.returncode == 0, started.stderr
    wait_until(lambda: at_step(workdir, 50), seconds=150)
    done = pod("stop")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("finished with status 75, by tpu.sh stop\n") == WORKERS
    assert pod("status").returncode == 75
    assert "which is saved" in pod("logs").stdout
    assert pod("delete").returncode == 0
    assert not pod.get("exists")
