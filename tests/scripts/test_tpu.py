"""`scripts/tpu.sh` against a stand-in `gcloud`, and a program in place of jaxtrain."""

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scripts.cloud import ROOT, TPU, Cloud, Completed, checkout, finish, wait_until, write_script

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
# Spaces, quotes of both kinds, and all that a shell would take for its own.
HARD = ["--config.data.augment=flip|pad_crop(4)", '--note=it\'s "$HOME"  `x` \\ * & ;', "--empty="]


def ssh(command: str, worker: str = "all") -> str:
    return f"{VM} ssh pod {COMMON} --worker={worker} {HOW} {SSH_FLAGS} '--command={command}'"


def on_worker(words: str, worker: str = "all") -> str:
    return ssh(f"bash jaxtrain-worker/worker.sh {words}", worker)


def scp(*files: str) -> str:
    return (
        f"{VM} scp {' '.join(files)} pod:jaxtrain-worker/ {COMMON} --worker=all {HOW} {SCP_FLAGS}"
    )


def error(done: Completed, status: int) -> str:
    """The one line of an error of tpu.sh."""
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("tpu.sh: error: ")
    return done.stderr.removeprefix("tpu.sh: error: ").strip()


@pytest.fixture
def new_cloud(tmp_path: Path) -> Iterator[Callable[..., Cloud]]:
    clouds: list[Cloud] = []

    def new(workers: int = 4) -> Cloud:
        clouds.append(Cloud(tmp_path / f"cloud {len(clouds)}", workers))
        return clouds[-1]

    yield new
    for cloud in clouds:
        cloud.clean_up()


@pytest.fixture
def cloud(new_cloud: Callable[..., Cloud]) -> Cloud:
    return new_cloud()


@pytest.fixture
def pod(cloud: Cloud) -> Cloud:
    """Four workers that are ready, with a program in place of jaxtrain."""
    cloud.install()
    return cloud


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


class TestSettings:
    def test_help_names_every_flag_of_a_verb_and_asks_nothing(self, cloud: Cloud) -> None:
        everything = cloud("--help")
        flags = set(re.findall(r"^  --(\w+)", everything.stdout, re.M))
        assert {"name", "zone", "spot", "queued", "retries", "dry_run"} <= flags
        assert (everything.returncode, everything.stderr) == (0, "")
        of_a_verb = set()
        for verb in ("create", "setup", "train", "status", "logs", "stop", "delete"):
            done = cloud(verb, "--help", TPU_NAME="", TPU_ZONE="")
            assert (done.returncode, done.stderr) == (0, "")
            assert f"\n  {verb} " in done.stdout
            assert "  --zone " in done.stdout
            of_a_verb |= set(re.findall(r"^  --(\w+)", done.stdout, re.M))
            assert max(map(len, done.stdout.splitlines())) <= 100
        assert of_a_verb == flags
        assert "--retries" not in cloud("stop", "--help").stdout
        assert cloud.calls() == []

    def test_every_flag_is_taken_from_the_environment_and_a_flag_wins(self, cloud: Cloud) -> None:
        """The commands are those that the flags make."""
        (cloud.folder / "a b.py").touch()
        (cloud.folder / "m.py").touch()
        flags = {
            "name": "other",
            "zone": "us-east1-c",
            "project": "p",
            "accelerator_type": "v6e-8",
            "runtime_version": "mine",
            "network": "net",
            "internal_ip": "true",
            "spot": "true",
            "queued": "true",
            "create_flags": "--labels=a=b",
            "extras": "gcs",
            "config": "a b.py",
            "files": "m.py",
            "workdir": "gs://b/a b",
            "follow": "true",
            "worker": "all",
            "force": "true",
            "stop_seconds": "9",
            "dry_run": "true",
        }
        environment = {f"TPU_{name.upper()}": value for name, value in flags.items()}
        for verb in ("create", "setup", "train", "status", "logs", "stop", "delete"):
            by_environment = cloud(verb, **environment)
            assert by_environment.returncode == 0, by_environment.stderr
            help_text = cloud(verb, "--help").stdout
            words = [f"--{k}={v}" for k, v in flags.items() if f"  --{k} " in help_text]
            wrong = {name: "wrong" for name in environment if name[4:].lower() not in words}
            by_flags = cloud(verb, *words, **{**wrong, **not_of(verb, flags, help_text)})
            assert by_flags.stdout == by_environment.stdout, by_flags.stderr
            assert "other" in by_flags.stdout
            assert "us-east1-c" in by_flags.stdout
        # Those that no command shows are seen where they are wrong.
        for name in ("wait_minutes", "poll_seconds", "lost_seconds", "retries", "recreate"):
            assert f"{name}=x is not" in cloud("train", **{f"TPU_{name.upper()}": "x"}).stderr

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ([], "no verb; it is one of create, setup, train, status, logs, stop, delete"),
            (["make"], "make is no verb; it is one of create"),
            (["stop", "now"], "now is no flag; write --FLAG=VALUE"),
            (["train", "--config.seed=3"], "--config.seed is no flag; see tpu.sh train --help"),
            (["train", "--dry-run"], "--dry-run is no flag"),
            (["stop", "--retries=3"], "--retries is read by train, not by stop; leave it out"),
            (["stop", "--", "x"], "-- x: only train takes arguments for jaxtrain, not stop"),
            (["stop", "--name"], "--name has no value; write --name=VALUE"),
            (["stop", "--name="], "no name; write --name=NAME or set TPU_NAME"),
            (["stop", "--name=My_Pod"], "name=My_Pod is no name for a VM; use small letters"),
            (["stop", "--zone="], "no zone; write --zone=ZONE or set TPU_ZONE"),
            (["stop", "--force=yes"], "force=yes is not true or false"),
            (["train", "--retries=-1"], "retries=-1 is not a whole number; write retries=0"),
            (["logs", "--worker=x"], "worker=x is not a whole number; write worker=0"),
            (["setup", "--extras=a b"], "extras=a b is no list of extras; write extras=tpu,gcs"),
            (["setup", "--config=my/no.py"], "my/no.py is no file here; mend --config or --files"),
            (["train"], "nothing to train; write --config=FILE or --workdir=DIR"),
            (["create"], "no accelerator_type; write --accelerator_type=TYPE"),
            (
                ["create", "--accelerator_type=v9-8"],
                "accelerator_type=v9-8 is not known here; write --runtime_version=VERSION as well",
            ),
            (
                ["create", "--accelerator_type=tpu7x-8"],
                "accelerator_type=tpu7x-8 has no TPU VMs; use scripts/jobset.yaml on GKE",
            ),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_an_error_is_one_line_with_the_value_and_the_fix(
        self, cloud: Cloud, words: list[str], message: str
    ) -> None:
        assert error(cloud(*words), 2).startswith(message)
        assert cloud.calls() == []

    @pytest.mark.parametrize(
        ("accelerator", "version"),
        [
            ("v2-8", "tpu-ubuntu2204-base"),
            ("v4-32", "tpu-ubuntu2204-base"),
            ("v5litepod-4", "v2-alpha-tpuv5-lite"),
            ("v5p-8", "v2-alpha-tpuv5"),
            ("v6e-16", "v2-alpha-tpuv6e"),
        ],
    )
    def test_software_that_goes_with_the_accelerator(
        self, cloud: Cloud, accelerator: str, version: str
    ) -> None:
        done = cloud("create", "--dry_run", f"--accelerator_type={accelerator}")
        assert f" --version={version}\n" in done.stdout

    def test_no_gcloud_is_said(self, cloud: Cloud) -> None:
        (cloud.folder / "bin" / "gcloud").unlink()
        tools = cloud.folder / "tools"
        tools.mkdir()
        for tool in ("bash", "cut", "paste", "sed", "dirname", "env"):
            (tools / tool).symlink_to(f"/usr/bin/{tool}")
        done = subprocess.run(
            ["/usr/bin/bash", str(TPU), "status"],
            env={"PATH": str(tools), "TPU_NAME": "pod", "TPU_ZONE": "z"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert error(done, 2) == "gcloud is not on the PATH; install the Google Cloud CLI"


def not_of(verb: str, flags: dict[str, str], help_text: str) -> dict[str, str]:
    """Values by environment of the flags that a verb does not have."""
    return {f"TPU_{k.upper()}": v for k, v in flags.items() if f"  --{k} " not in help_text}


class TestCreate:
    CREATE = ("create", "--accelerator_type=v5litepod-16")

    @pytest.mark.parametrize("queued", ["false", "true"])
    def test_waits_until_it_is_ready_and_says_the_states(self, cloud: Cloud, queued: str) -> None:
        states = ["WAITING_FOR_RESOURCES", "WAITING_FOR_RESOURCES", "UNAVAILABLE", "CREATING"]
        cloud.set(after_create=[*states, "READY"])
        done = cloud(*self.CREATE, TPU_QUEUED=queued)
        assert done.returncode == 0, done.stderr
        said = [line for line in done.stderr.splitlines() if line.startswith("tpu.sh")]
        last = "ACTIVE" if queued == "true" else "READY"
        assert said == [
            f"tpu.sh: pod is {state}"
            for state in ("WAITING_FOR_RESOURCES", "UNKNOWN", "CREATING", last)
        ]
        assert "the service does not answer" in done.stderr

    def test_what_is_there_is_waited_for_and_not_made_again(self, cloud: Cloud) -> None:
        cloud.set(exists=True, states=["CREATING", "READY"])
        assert cloud(*self.CREATE).returncode == 0
        assert not any("create" in call for call in cloud.calls())

    def test_waiting_is_bounded(self, cloud: Cloud) -> None:
        cloud.set(after_create=["WAITING_FOR_RESOURCES"])
        done = cloud(*self.CREATE, "--wait_minutes=0")
        assert done.returncode == 1
        assert "still WAITING_FOR_RESOURCES after wait_minutes=0" in done.stderr

    @pytest.mark.parametrize("state", ["PREEMPTED", "TERMINATED", "SUSPENDED", "FAILED"])
    def test_what_will_never_be_ready_is_said(self, cloud: Cloud, state: str) -> None:
        cloud.set(after_create=[state])
        done = cloud(*self.CREATE)
        assert done.returncode == 1
        assert f"pod is {state} and will not be ready; tpu.sh delete" in done.stderr

    def test_a_preempted_vm_has_to_be_deleted_first(self, cloud: Cloud) -> None:
        cloud.set(exists=True, states=["PREEMPTED"])
        message = "pod is PREEMPTED, not READY; tpu.sh delete, then create it again"
        assert error(cloud("status"), 1) == message

    def test_a_failure_of_gcloud_is_passed_on(self, cloud: Cloud) -> None:
        done = cloud(*self.CREATE, "--create_flags=--no-such-flag")
        assert done.returncode == 2
        assert "unrecognized arguments: --no-such-flag" in done.stderr
        assert done.stderr.endswith("error: gcloud could not create pod\n")

    def test_delete(self, pod: Cloud) -> None:
        assert pod("delete").returncode == 0
        assert not pod.get("exists")
        done = pod("delete")
        assert done.returncode == 1
        assert done.stderr.endswith("error: gcloud could not delete pod\n")
        for verb in ("setup", "status", "stop"):
            done = pod(verb)
            assert error(done, 1).startswith("pod is NOT_FOUND, not READY; tpu.sh create makes it")


class TestSetup:
    @pytest.fixture
    def cloud(self, tmp_path: Path) -> Iterator[Cloud]:
        """Four workers that are ready, on which pip is not the real one."""
        cloud = Cloud(tmp_path / "cloud", script=checkout(tmp_path / "a checkout"))
        cloud.set(exists=True)
        cloud.fake_pip()
        yield cloud
        cloud.clean_up()

    def test_installs_the_wheel_and_says_what_each_worker_has(self, cloud: Cloud) -> None:
        (cloud.folder / "my config.json").write_text("{}")
        done = cloud("setup", "--config=my config.json", "--extras=gcs")
        assert (done.returncode, done.stderr) == (0, "")
        version = r"jaxtrain \S+, python 3, jax 0"
        for worker in range(4):
            assert re.search(rf"^worker {worker}: {version}$", done.stdout, re.M), done.stdout
            calls = (cloud.place(worker) / "pip-calls").read_text().splitlines()
            name = Path(WHEEL).name
            assert [call.split(" install ")[1] for call in calls] == [
                f"./{name}[gcs]",
                f"--force-reinstall --no-deps ./{name}",
            ]
            assert (cloud.place(worker) / "my config.json").read_text() == "{}"
        assert cloud("setup", "--extras=").returncode == 0, "again, in the same environment"

    def test_a_worker_that_fails_is_named_and_its_status_is_passed_on(self, cloud: Cloud) -> None:
        assert cloud("setup").returncode == 0
        (cloud.place(2) / "broken").touch()
        done = cloud("setup")
        assert done.returncode == 9
        assert "worker 2: no space left\n" in done.stdout
        assert done.stderr == "tpu.sh: error: setup ended with status 9 on worker 2\n"
        cloud.set(unreachable=[1])
        done = cloud("setup")
        assert done.returncode == 255
        assert "tpu.sh: error: worker 1 cannot be reached\n" in done.stderr

    def test_it_does_not_change_what_runs(self, cloud: Cloud) -> None:
        assert cloud("setup").returncode == 0
        assert cloud("train", "--config=mnist_mlp").returncode == 0
        done = cloud("setup")
        assert done.returncode == 2
        assert "worker 0: error: a run is going on; stop it first\n" in done.stdout

    def test_a_machine_with_an_old_python_gets_a_newer_one(self, cloud: Cloud) -> None:
        """The images of TPU VMs are older than what JAX takes."""
        for worker in range(4):
            home = cloud.folder / f"worker-{worker}" / "bin"
            (home / "python3").rename(home / "new")
            old = '#!/bin/sh\necho "$*" >>old-calls\n[ "$1" != -c ] || exit 1\n'
            uv = 'case "$*" in "-m uv venv "*) cd "$PWD" && "$HOME/bin/new" -m venv venv ;; esac\n'
            for name in ("python3", "python3.13", "python3.12", "python3.11"):
                write_script(home / name, old + uv)
        done = cloud("setup")
        assert done.returncode == 0, done.stdout
        assert "worker 1: no Python 3.11 or later here; getting one with uv\n" in done.stdout
        calls = (cloud.place(1) / "old-calls").read_text().splitlines()
        assert calls[-2:] == [
            "-m pip install --quiet --user uv",
            "-m uv venv --quiet --clear --seed --python 3.12 venv",
        ]

    def test_a_wheel_that_cannot_be_built_is_said(self, cloud: Cloud) -> None:
        write_script(cloud.folder / "bin" / "python3", "#!/bin/sh\nexit 1\n")
        done = cloud("setup")
        assert error(done, 1).startswith("pip could not build ")
        assert not any("ssh" in call for call in cloud.calls())

    def test_a_preempted_vm_is_made_anew_and_goes_on(self, cloud: Cloud) -> None:
        assert cloud("setup").returncode == 0
        process = cloud.start(
            *("train", "--config=mnist_mlp", "--retries=1", "--recreate", "--spot"),
            "--accelerator_type=v5litepod-16",
        )
        cloud.wait_for("run/log", "words")
        cloud.set(states=["PREEMPTED"])
        for worker in range(4):
            for process_id in processes_in(cloud.place(worker)):
                os.kill(process_id, signal.SIGKILL)
        wait_until(lambda: sum("worker.sh start" in call[-1] for call in cloud.calls()) == 2)
        cloud.end(0)
        done = finish(process)
        assert done.returncode == 0, done.stderr
        made = [call[1] for call in cloud.calls() if call[1] in ("create", "delete", "scp")]
        assert made == ["scp", "delete", "create", "scp"]
        assert "--spot" in next(call for call in cloud.calls() if call[1] == "create")


class TestRun:
    def test_words_reach_the_program_as_they_are(self, pod: Cloud) -> None:
        place = pod.folder / "my configs"
        place.mkdir()
        (place / "the config.py").write_text("this one")
        (place / "net.py").write_text("a module")
        flags = ["--config=my configs/the config.py", "--files=my configs/net.py"]
        done = pod("train", *flags, "--workdir=gs://b/a run", "--", *HARD)
        assert done.returncode == 0, done.stderr
        pod.wait_for("run/log", "words")
        words = ["train", "--config=the config.py", "--workdir=gs://b/a run", *HARD]
        for worker in range(4):
            assert pod.log(worker) == f"words {words}\n"
            assert (pod.place(worker) / "the config.py").read_text() == "this one"
            assert (pod.place(worker) / "net.py").read_text() == "a module"

    def test_it_runs_without_the_session_until_it_is_stopped(self, pod: Cloud) -> None:
        assert pod("status").stdout == "".join(f"worker {k}: not started\n" for k in range(4))
        assert pod("train", "--config=mnist_mlp").returncode == 0
        done = pod("status")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "".join(f"worker {k}: running\n" for k in range(4))

        again = pod("train", "--config=mnist_mlp")
        assert re.match(r"worker \d has a run going on; tpu.sh logs follows it", error(again, 2))
        assert all((pod.place(k) / "starts").read_text() == "x" for k in range(4))
        pod.wait_for("run/log", "words")

        done = pod("stop")
        assert done.returncode == 0, done.stderr
        expected = {f"worker {k}: finished with status 75, by tpu.sh stop" for k in range(4)}
        assert set(done.stdout.splitlines()) == expected
        done = pod("status")
        assert (done.returncode, set(done.stdout.splitlines())) == (75, expected)
        assert pod("stop").returncode == 0, "nothing to do"

        done = pod("logs", "--worker=2")
        assert done.stdout.splitlines() == [
            "worker 2: words ['train', '--config=mnist_mlp']",
            "worker 2: saved and stopped",
        ]
        assert len(pod("logs", "--worker=all").stdout.splitlines()) == 8

    def test_logs_follow(self, pod: Cloud) -> None:
        assert pod("train", "--config=mnist_mlp").returncode == 0
        process = pod.start("logs", "--worker=1")
        assert process.stdout is not None
        assert process.stdout.readline() == "worker 1: words ['train', '--config=mnist_mlp']\n"
        assert process.poll() is None
        pod.kill(1)
        done = finish(process)
        assert (done.returncode, done.stdout) == (0, "worker 1: saved and stopped\n")

    def test_a_forced_stop_ends_what_does_not_listen(self, pod: Cloud) -> None:
        deaf = "#!/bin/sh\ntrap '' TERM\necho words\nwhile :; do sleep 0.1; done\n"
        for worker in range(4):
            (pod.place(worker) / "venv" / "bin" / "jaxtrain").write_text(deaf)
        assert pod("train", "--config=mnist_mlp").returncode == 0
        pod.wait_for("run/log", "words")
        done = pod("stop", "--stop_seconds=0")
        assert done.returncode == 1
        assert "did not end within stop_seconds=0; wait, or use --force" in done.stdout
        assert "stop ended with status 1 on worker 3" in done.stderr
        done = pod("stop", "--force", "--stop_seconds=0")
        assert done.returncode == 0, done.stderr
        assert "worker 3: finished with status 137, by tpu.sh stop" in done.stdout

    def test_what_was_not_set_up_is_said(self, cloud: Cloud) -> None:
        cloud.set(exists=True)
        done = cloud("train", "--config=mnist_mlp")
        assert done.returncode == 2
        for worker in range(4):
            assert f"error: worker {worker} is not set up; run tpu.sh setup first" in done.stderr

    def test_a_machine_that_restarts_has_lost_its_run(self, pod: Cloud) -> None:
        assert pod("train", "--config=mnist_mlp").returncode == 0
        for process in processes_in(pod.place(2)):
            os.kill(process, signal.SIGKILL)
        wait_until(lambda: not list(processes_in(pod.place(2))))
        done = pod("status")
        assert done.returncode == 7
        assert "worker 2: lost\n" in done.stdout
        assert pod("stop").returncode == 0
        assert pod("train", "--config=mnist_mlp").returncode == 0


def processes_in(folder: Path) -> Iterator[int]:
    """Processes that run in a folder."""
    for path in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if path.readlink() == folder:
                yield int(path.parent.name)
        except OSError:
            continue


class TestFailures:
    def follow(self, pod: Cloud, *words: str, **environment: str) -> "subprocess.Popen[str]":
        process = pod.start("train", "--config=mnist_mlp", "--follow", *words, **environment)
        pod.wait_for("run/log", "words")
        wait_until(lambda: any("logs" in call[-1] for call in pod.calls()))
        return process

    def test_all_that_end_well_end_well(self, pod: Cloud) -> None:
        process = self.follow(pod, "--worker=all")
        pod.end(0)
        done = finish(process)
        assert (done.returncode, done.stderr) == (0, "")
        for worker in range(4):
            assert f"worker {worker}: words ['train', '--config=mnist_mlp']\n" in done.stdout

    def test_a_worker_that_fails_stops_the_others_and_its_status_is_passed_on(
        self, pod: Cloud
    ) -> None:
        process = self.follow(pod, "--retries=3")
        pod.end(3, 2)
        done = finish(process)
        assert done.returncode == 3
        assert done.stderr == "tpu.sh: error: status 3 on worker 2; ending the others\n"
        assert all((pod.place(k) / "starts").read_text() == "x" for k in range(4))
        assert [pod.log(k).endswith("stopped\n") for k in range(4)] == [True, True, False, True]

    @pytest.mark.parametrize("stop_status", ["130", "7", "5"])
    def test_what_others_make_of_the_end_does_not_hide_the_cause(
        self, pod: Cloud, stop_status: str
    ) -> None:
        pod.set(environment={"STOP_STATUS": stop_status})
        process = self.follow(pod)
        pod.end(3, 3)
        assert finish(process).returncode == 3

    def test_a_preemption_starts_again(self, pod: Cloud) -> None:
        process = self.follow(pod, "--retries=1", TPU_STOP_SECONDS="1")
        pod.kill(1)
        wait_until(lambda: all((pod.place(k) / "starts").read_text() == "xx" for k in range(4)))
        pod.end(0)
        done = finish(process)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ("tpu.sh: it ended with status 75; starting it again, 1 of 1\n")
        assert (pod.place(1) / "run" / "log.previous").read_text().endswith("stopped\n")

    def test_a_lost_peer_starts_again_as_often_as_said(self, pod: Cloud) -> None:
        pod.end(7)
        done = pod("train", "--config=mnist_mlp", "--retries=2")
        assert done.returncode == 7
        assert "starting it again, 2 of 2\n" in done.stderr
        assert all((pod.place(k) / "starts").read_text() == "xxx" for k in range(4))

    def test_a_vm_in_repair_is_waited_for(self, pod: Cloud) -> None:
        pod.end(7)
        pod.set(states=["READY", "REPAIRING", "REPAIRING", "READY"])
        done = pod("train", "--config=mnist_mlp", "--retries=1")
        assert done.returncode == 7
        assert "tpu.sh: pod is REPAIRING\ntpu.sh: pod is READY\n" in done.stderr
        assert all((pod.place(k) / "starts").read_text() == "xx" for k in range(4))

    def test_a_stop_that_was_asked_for_does_not_start_again(self, pod: Cloud) -> None:
        process = self.follow(pod, "--retries=3")
        assert pod("stop").returncode == 0
        assert finish(process).returncode == 75
        assert all((pod.place(k) / "starts").read_text() == "x" for k in range(4))

    def test_a_worker_that_cannot_be_reached_is_named(self, pod: Cloud) -> None:
        pod.set(unreachable=[2])
        done = pod("train", "--config=mnist_mlp")
        assert done.returncode == 255
        assert "tpu.sh: error: worker 2 cannot be reached\n" in done.stderr
        assert not any((pod.place(k) / "starts").exists() for k in range(4)), "none without it"
        done = pod("status")
        assert done.returncode == 255
        assert "worker 1: not started\nworker 3: not started\n" in done.stdout
        assert pod("logs", "--worker=2").returncode == 255

    def test_a_worker_that_does_not_start_ends_the_others(self, pod: Cloud) -> None:
        (pod.place(1) / "venv" / "bin" / "jaxtrain").unlink()
        done = pod("train", "--config=mnist_mlp")
        assert done.returncode == 2
        assert "worker 1: error: jaxtrain is not installed; run tpu.sh setup first" in done.stdout
        assert "tpu.sh: error: start ended with status 2 on worker 1" in done.stderr
        assert "running" not in pod("status").stdout

    def test_following_outlasts_a_silence(self, pod: Cloud) -> None:
        process = self.follow(pod)
        pod.set(unreachable=[0, 1, 2, 3])
        asked = len(pod.calls())
        wait_until(lambda: len(pod.calls()) > asked + 3)
        pod.set(unreachable=[])
        pod.end(0)
        assert finish(process).returncode == 0

    def test_following_ends_after_a_long_silence_of_one(self, pod: Cloud) -> None:
        process = self.follow(pod, TPU_LOST_SECONDS="1")
        pod.set(unreachable=[3])
        done = finish(process)
        assert done.returncode == 255
        assert "no answer of all workers for lost_seconds=1" in done.stderr
        assert pod.log(0).endswith("saved and stopped\n")

    def test_a_preempted_vm_is_said(self, pod: Cloud) -> None:
        process = self.follow(pod, "--retries=1")
        pod.set(states=["PREEMPTED"])
        done = finish(process)
        assert done.returncode == 7
        assert "tpu.sh: error: pod is PREEMPTED\n" in done.stderr
        assert "delete, create, setup and train go on, as --recreate does" in done.stderr

    def test_ctrl_c_ends_following_but_not_the_run(self, pod: Cloud) -> None:
        process = self.follow(pod)
        process.send_signal(signal.SIGINT)
        done = finish(process)
        assert done.returncode == 130
        assert "it goes on; tpu.sh logs follows it, tpu.sh stop ends it\n" in done.stderr
        assert pod("status").stdout.count("running") == 4


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
