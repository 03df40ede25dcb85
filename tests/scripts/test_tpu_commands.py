"""`scripts/tpu.sh --dry_run`: the commands of each verb, which are those that it runs."""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
from scripts.cloud import HARD, ROOT, Cloud

import jaxtrain

COMMON = "--zone=us-west4-a --quiet"
VM = "gcloud compute tpus tpu-vm"
DESCRIBE = f"{VM} describe pod {COMMON} '--format=value(state,networkEndpoints.len())'"
HOW = "--strict-host-key-checking=no --no-user-output-enabled"
SSH_FLAGS = " ".join(
    f"--ssh-flag=-o{option}"
    for option in ("BatchMode=yes", "ConnectTimeout=20", "ServerAliveInterval=30")
)
SCP_FLAGS = SSH_FLAGS.replace("--ssh-flag", "--scp-flag")
WHEEL = f"{ROOT}/dist/jaxtrain-{jaxtrain.__version__}-py3-none-any.whl"


def ssh(command: str, worker: str = "all") -> str:
    return f"{VM} ssh pod {COMMON} --worker={worker} {HOW} {SSH_FLAGS} '--command={command}'"


def on_worker(words: str, worker: str = "all") -> str:
    return ssh(f"bash jaxtrain-worker/worker.sh {words}", worker)


def scp(*files: str) -> str:
    return (
        f"{VM} scp {' '.join(files)} pod:jaxtrain-worker/ {COMMON} --worker=all {HOW} {SCP_FLAGS}"
    )


class TestDryRun:
    CREATE = "--accelerator_type=v5litepod-16"
    CASES = (
        (
            ["create", CREATE],
            [
                DESCRIBE,
                f"{VM} create pod {COMMON} --accelerator-type=v5litepod-16"
                " --version=v2-alpha-tpuv5-lite",
                DESCRIBE,
            ],
        ),
        (
            [
                *("create", "--queued", "--spot", "--internal_ip", "--network=my-net", CREATE),
                "--create_flags=--labels=a=b --tags=c",
            ],
            [
                f"gcloud compute tpus queued-resources describe pod {COMMON} "
                "'--format=value(state.state)'",
                f"gcloud compute tpus queued-resources create pod {COMMON}"
                " --accelerator-type=v5litepod-16 --runtime-version=v2-alpha-tpuv5-lite"
                " --node-id=pod --network=my-net --internal-ips --spot --labels=a=b --tags=c",
                f"gcloud compute tpus queued-resources describe pod {COMMON} "
                "'--format=value(state.state)'",
            ],
        ),
        (
            ["setup", "--config=mnist_mlp"],
            [
                DESCRIBE,
                f"python3 -m pip wheel --quiet --no-deps --wheel-dir={ROOT}/dist {ROOT}",
                ssh(
                    "mkdir -p jaxtrain-worker; s=$?; echo worker $(curl -sfm 5 -H"
                    " Metadata-Flavor:Google http://metadata.google.internal/computeMetadata/v1/"
                    "instance/attributes/agent-worker-number || hostname): exit $s; exit $s"
                ),
                scp(f"{ROOT}/scripts/tpu/worker.sh", WHEEL),
                on_worker(f"setup {Path(WHEEL).name} tpu,gcs"),
            ],
        ),
        (
            ["train", "--config=my config.py", "--workdir=gs://b/r", "--follow", "--", "--fresh"],
            [
                DESCRIBE,
                on_worker("status"),
                scp("'my config.py'"),
                on_worker(r"start '\''--config=my config.py'\'' --workdir=gs://b/r --fresh"),
                on_worker("logs", "0"),
                on_worker("status"),
            ],
        ),
        (
            ["train", "--workdir=gs://b/r"],
            [DESCRIBE, on_worker("status"), on_worker("start --workdir=gs://b/r")],
        ),
        (
            ["train", "--workdir=gs://b/r", "--recreate"],
            [
                DESCRIBE,
                f"{VM} describe pod {COMMON} '--format=value(acceleratorType,runtimeVersion,"
                "queuedResource,schedulingConfig.spot,schedulingConfig.preemptible,"
                "networkConfig.network,networkConfig.subnetwork,networkConfig.enableExternalIps)'",
                on_worker("status"),
                on_worker("start --workdir=gs://b/r"),
            ],
        ),
        (["status"], [DESCRIBE, on_worker("status")]),
        (["logs"], [on_worker("logs", "0")]),
        (["logs", "--worker=all"], [DESCRIBE, on_worker("logs")]),
        (["stop"], [DESCRIBE, on_worker("stop false 20 asked")]),
        (["stop", "--force"], [DESCRIBE, on_worker("stop true 20 asked")]),
        (["delete"], [f"{VM} delete pod {COMMON}"]),
        (
            ["delete", "--queued", "--project=p"],
            [
                "gcloud compute tpus queued-resources delete pod --zone=us-west4-a --project=p"
                " --quiet --force"
            ],
        ),
    )

    @pytest.mark.parametrize(("words", "commands"), CASES, ids=lambda value: " ".join(value)[:40])
    def test_prints_the_commands_and_runs_none(
        self, cloud: Cloud, words: list[str], commands: list[str]
    ) -> None:
        (cloud.folder / "my config.py").touch()
        verb, *flags = words
        done = cloud(verb, "--dry_run", *flags)
        assert (done.returncode, done.stdout.splitlines()) == (0, commands), done.stderr
        assert cloud.calls() == []

    @pytest.mark.parametrize(
        ("words", "commands"),
        [case for case in CASES if case[0][0] != "setup"],
        ids=lambda value: " ".join(value)[:40],
    )
    def test_what_it_prints_is_what_it_runs(
        self, pod: Cloud, words: list[str], commands: list[str]
    ) -> None:
        (pod.folder / "my config.py").touch()
        for worker in range(4):
            (pod.place(worker) / "run").mkdir()
            (pod.place(worker) / "run" / "log").touch()
        pod.end(0)
        if words[0] == "create":
            pod.set(exists=False)
        done = pod(*words)
        assert done.returncode == 0, done.stderr
        calls = ["gcloud compute tpus " + shlex.join(call) for call in pod.calls()]
        # As often as it takes: it asks for states again and again.
        assert {tuple(shlex.split(call)) for call in calls} == {
            tuple(shlex.split(command)) for command in commands
        }

    def test_what_it_prints_can_be_pasted(self, pod: Cloud) -> None:
        printed = pod("train", "--dry_run", "--workdir=a b", "--", *HARD).stdout
        done = subprocess.run(
            ["sh", "-e"],
            input=printed.replace("\n", " </dev/null\n"),
            env={
                **os.environ,
                "PATH": f"{pod.folder / 'bin'}:{os.environ['PATH']}",
                "STAND_IN": str(pod.folder),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        pod.wait_for("run/log", "words")
        assert pod.log(3) == f"words {['train', '--workdir=a b', *HARD]}\n"


def test_the_stand_in_takes_no_call_that_could_ask(pod: Cloud) -> None:
    """Else the tests above would not show that nothing prompts."""
    gcloud = str(pod.folder / "bin" / "gcloud")
    environment = {**os.environ, "STAND_IN": str(pod.folder)}
    words = ["compute", "tpus", "tpu-vm", "delete", "pod", "--zone=z"]
    for extra, stdin in ([], subprocess.DEVNULL), (["--quiet"], subprocess.PIPE):
        done = subprocess.run(
            [gcloud, *words, *extra],
            stdin=stdin if stdin == subprocess.DEVNULL else None,
            input="y" if stdin == subprocess.PIPE else None,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert "it would ask" in done.stderr
    assert json.loads((pod.folder / "cloud.json").read_text())["exists"]
