"""`scripts/tpu.sh train` and what follows, with a program in place of jaxtrain."""

import os
import re
import signal

import pytest
from scripts.cloud import HARD, Cloud, error, finish, processes_in, wait_until


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


class TestFailures:
    def test_all_that_end_well_end_well(self, pod: Cloud) -> None:
        process = pod.follow("--worker=all")
        pod.end(0)
        done = finish(process)
        assert (done.returncode, done.stderr) == (0, "")
        for worker in range(4):
            assert f"worker {worker}: words ['train', '--config=mnist_mlp']\n" in done.stdout

    def test_a_worker_that_fails_stops_the_others_and_its_status_is_passed_on(
        self, pod: Cloud
    ) -> None:
        process = pod.follow("--retries=3")
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
        process = pod.follow()
        pod.end(3, 3)
        assert finish(process).returncode == 3

    def test_a_preemption_starts_again(self, pod: Cloud) -> None:
        process = pod.follow("--retries=1", TPU_STOP_SECONDS="1")
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

    @pytest.mark.parametrize("queued", ["false", "true"])
    def test_a_vm_in_repair_is_waited_for(self, pod: Cloud, queued: str) -> None:
        """The VM itself: its queued resource is active all the time."""
        process = pod.follow("--retries=1", TPU_STOP_SECONDS="1", TPU_QUEUED=queued)
        pod.set(states=["REPAIRING", "REPAIRING", "READY"])
        for worker in range(4):
            pod.kill(worker)
        wait_until(lambda: all((pod.place(k) / "starts").read_text() == "xx" for k in range(4)))
        pod.end(0)
        done = finish(process)
        assert done.returncode == 0, done.stderr
        assert done.stderr.endswith("tpu.sh: pod is REPAIRING\ntpu.sh: pod is READY\n")

    def test_a_vm_that_is_lost_in_repair_is_said(self, pod: Cloud) -> None:
        process = pod.follow("--retries=1", TPU_STOP_SECONDS="1")
        pod.set(states=["REPAIRING", "TERMINATED"])
        pod.kill(0)
        done = finish(process)
        assert done.returncode == 7
        assert "tpu.sh: error: pod is TERMINATED; tpu.sh delete, create, setup" in done.stderr

    def test_a_stop_that_was_asked_for_does_not_start_again(self, pod: Cloud) -> None:
        process = pod.follow("--retries=3")
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
        process = pod.follow()
        pod.set(unreachable=[0, 1, 2, 3])
        asked = len(pod.calls())
        wait_until(lambda: len(pod.calls()) > asked + 3)
        pod.set(unreachable=[])
        pod.end(0)
        assert finish(process).returncode == 0

    def test_following_ends_after_a_long_silence_of_one(self, pod: Cloud) -> None:
        process = pod.follow(TPU_LOST_SECONDS="1")
        pod.set(unreachable=[3])
        done = finish(process)
        assert done.returncode == 255
        assert "no answer of all workers for lost_seconds=1" in done.stderr
        assert pod.log(0).endswith("saved and stopped\n")

    def test_a_preempted_vm_is_said(self, pod: Cloud) -> None:
        process = pod.follow("--retries=1")
        pod.set(states=["PREEMPTED"])
        done = finish(process)
        assert done.returncode == 7
        assert "tpu.sh: error: pod is PREEMPTED\n" in done.stderr
        assert "delete, create, setup and train go on, as --recreate does" in done.stderr

    def test_ctrl_c_ends_following_but_not_the_run(self, pod: Cloud) -> None:
        process = pod.follow()
        process.send_signal(signal.SIGINT)
        done = finish(process)
        assert done.returncode == 130
        assert "it goes on; tpu.sh logs follows it, tpu.sh stop ends it\n" in done.stderr
        assert pod("status").stdout.count("running") == 4
