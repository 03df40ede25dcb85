"""`scripts/tpu.sh create`, `setup` and `delete`, against a stand-in `gcloud`."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts.cloud import (
    Cloud,
    checkout,
    error,
    finish,
    processes_in,
    wait_until,
    write_script,
)

import jaxtrain

WHEEL = f"jaxtrain-{jaxtrain.__version__}-py3-none-any.whl"


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
            name = WHEEL
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

    @pytest.mark.parametrize("queued", ["false", "true"])
    @pytest.mark.parametrize(
        "flags", [[], ["--spot", "--internal_ip", "--network=my-net", "--runtime_version=mine"]]
    )
    def test_a_preempted_vm_is_made_anew_as_it_was_and_goes_on(
        self, cloud: Cloud, flags: list[str], queued: str
    ) -> None:
        cloud.set(exists=False)
        words = ["--accelerator_type=v5litepod-16", *flags]
        assert cloud("create", *words, TPU_QUEUED=queued).returncode == 0
        assert cloud("setup").returncode == 0
        # What it was made with is not said again; what is said instead is of no account.
        process = cloud.follow("--retries=1", "--recreate", TPU_ACCELERATOR_TYPE="v4-8")
        cloud.set(states=["PREEMPTED"])
        for worker in range(4):
            for process_id in processes_in(cloud.place(worker)):
                os.kill(process_id, signal.SIGKILL)
        wait_until(lambda: sum("worker.sh start" in call[-1] for call in cloud.calls()) == 2)
        cloud.end(0)
        done = finish(process)
        assert done.returncode == 0, done.stderr
        made = [call[1] for call in cloud.calls() if call[1] in ("create", "delete", "scp")]
        assert made == ["create", "scp", "delete", "create", "scp"]
        first, second = ({*call} for call in cloud.calls() if call[1] == "create")
        subnetwork, *network = sorted(second - first, reverse=True)
        assert subnetwork == "--subnetwork=projects/p/subnetworks/default"
        assert network == ([] if flags else ["--network=projects/p/global/networks/default"])
        assert first < second
