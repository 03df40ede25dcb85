"""Real processes on 127.0.0.1: they start, agree, and end together, however one of them ends."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from jax._src.lib import _jax
from ports import free_port

from jaxtrain.errors import UsageError
from jaxtrain.parallel.processes import coordinator
from jaxtrain.parallel.processes.coordination import reserved_port
from jaxtrain.parallel.processes.group import share_out

PROGRAM = Path(__file__).with_name("processes_program.py")
WAIT_SECONDS = 120
# A busy machine must not look lost; shorter where it is waited for.
TIMEOUT_SECONDS, SHORT_SECONDS = 60, 8

End = tuple[int, str, str]
"""Exit status, stdout and stderr."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Processes:
    """The processes of a scenario, some of which may be absent."""

    def __init__(
        self,
        scenario: str,
        count: int,
        absent: Sequence[int] = (),
        seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("JAX_", "XLA_", "PYTHON"))
        }
        environment |= {
            "JAX_PLATFORMS": "cpu",
            "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
            "JAX_NUM_PROCESSES": str(count),
            "http_proxy": "http://127.0.0.1:9",  # of no account between processes
        }
        words = ["train", "--config=mnist_mlp"]
        words.append(f"--config.parallel.peer_timeout_seconds={seconds}")
        self.processes = {
            k: subprocess.Popen(
                [sys.executable, PROGRAM, scenario, *words],
                env={**environment, "JAX_PROCESS_ID": str(k)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for k in range(count)
            if k not in absent
        }

    def ends(self) -> list[End]:
        ends = []
        for process in self.processes.values():
            out, err = process.communicate(timeout=WAIT_SECONDS)
            ends.append((process.returncode, out, err))
        return ends

    def wait_until_busy(self) -> None:
        """Until all are in the middle of their work."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not all(Path(f"pid.{k}").exists() for k in self.processes):
            assert time.monotonic() < deadline
            time.sleep(0.02)


@contextlib.contextmanager
def started(scenario: str, count: int, **options: Any) -> Iterator[Processes]:
    several = Processes(scenario, count, **options)
    try:
        yield several
    finally:
        for process in several.processes.values():
            process.kill()
            process.communicate()


def run(scenario: str, count: int, **options: Any) -> list[End]:
    with started(scenario, count, **options) as several:
        return several.ends()


def without_gloo(text: str) -> str:
    """Text but what Gloo says of its connections, which is on stderr and nowhere else."""
    return "".join(
        line for line in text.splitlines(keepends=True) if not line.startswith("[Gloo] Rank")
    )


def same_error(ends: list[End], status: int, words: str) -> None:
    """All left with this status and this one line."""
    for returncode, out, err in ends:
        assert (returncode, out) == (status, ""), err
        assert without_gloo(err) == f"jaxtrain: error: {words}\n"


def test_a_normal_end_is_quiet_and_common() -> None:
    for k, (status, out, err) in enumerate(run("normal", 4)):
        assert status == 0, err
        assert out == ("" if k else '{"count": 4}\n')
        assert without_gloo(err) == "by Python\n"


def test_stopped_together() -> None:
    ends = run("stopped", 2)
    assert [(status, out) for status, out, _ in ends] == [(75, "")] * 2
    assert without_gloo(ends[0][2]) == "jaxtrain: stopped after step 3 of 10\n"
    assert without_gloo(ends[1][2]) == ""


def test_agreement() -> None:
    assert run("agrees", 3) == [(0, '{"count": 3}\n', ""), (0, "", ""), (0, "", "")]
    said = [Path(f"said.{k}").read_text().splitlines() for k in range(3)]
    assert said[0] == said[1] == said[2]
    x, y = "x" * 30, "y" * 26
    assert said[0] == [
        "data: more is '2' in process 1, but not there in process 0; start all with the same",
        f"data: long is ...'{x}True{y}'... in process 2, but ...'{x}False{y[:-1]}'... in "
        "process 0; start all with the same",
        "process 0 does not see what process 1 wrote to ours; choose a folder that all processes "
        "share and may write to",
        "process 2 cannot write to not there: No such file or directory; choose a folder that all "
        "processes share and may write to",
    ]
    assert sorted(path.name for path in Path().rglob("*")) == [
        *("here.0", "here.1", "here.2", "mine", "ours", "said.0", "said.1", "said.2")
    ]


def test_an_expected_error_of_one_is_that_of_all() -> None:
    same_error(run("bad_data", 3), 3, "process 1: file x is damaged")


def test_nothing_is_left_of_a_proof_that_another_process_ends() -> None:
    same_error(run("unproven", 3), 3, "process 1: file x is damaged")
    assert list(Path().glob(".seen-by-all-*")) == []


def test_what_keeps_jax_from_connecting_one_is_told_to_all() -> None:
    ends = run("unconnected", 2)
    assert [(status, out) for status, out, _ in ends] == [(1, "")] * 2
    assert "RuntimeError: no room for it\n" in ends[1][2]
    words = "process 1: RuntimeError: no room for it: a fault of jaxtrain, see its output"
    assert without_gloo(ends[0][2]) == f"jaxtrain: error: {words}\n"


def test_a_fault_of_one_ends_all() -> None:
    ends = run("fault", 2)
    assert [(status, out) for status, out, _ in ends] == [(1, "")] * 2
    assert "ZeroDivisionError: oops\n" in ends[0][2]
    words = "process 0: ZeroDivisionError: oops: a fault of jaxtrain, see its output"
    assert without_gloo(ends[1][2]) == f"jaxtrain: error: {words}\n"


def test_an_error_that_looks_like_a_loss_is_told_when_nobody_is_lost() -> None:
    begun = time.monotonic()
    same_error(run("echo", 2, seconds=SHORT_SECONDS), 5, "process 1: cannot be written")
    assert time.monotonic() - begun > SHORT_SECONDS


def test_words_before_a_sudden_exit() -> None:
    ends = run("aborts", 2)
    assert [status for status, _, _ in ends] == [130, 130]
    assert without_gloo(ends[0][2]) == "jaxtrain: error: process 1: left at a second signal\n"


@pytest.mark.parametrize(("count", "victim"), [(2, 0), (3, 1)])
def test_a_killed_process_ends_all_others_at_once(count: int, victim: int) -> None:
    with started("endless", count) as several:
        several.wait_until_busy()
        several.processes[victim].kill()
        begun = time.monotonic()
        ends = several.ends()
        assert time.monotonic() - begun < TIMEOUT_SECONDS
    expect_loss(ends, victim, "it ended without a word")
    assert ends[victim][0] == -signal.SIGKILL


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_process_ends_all_others_after_the_timeout(victim: int) -> None:
    with started("endless", 2, seconds=SHORT_SECONDS) as several:
        several.wait_until_busy()
        several.processes[victim].send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        other = several.processes[1 - victim]
        out, err = other.communicate(timeout=WAIT_SECONDS)
        # Within the time-out, which a test of the group shows, and what a busy machine adds.
        assert SHORT_SECONDS / 2 < time.monotonic() - begun < SHORT_SECONDS + 15
        several.processes[victim].send_signal(signal.SIGCONT)
        assert several.processes[victim].wait(WAIT_SECONDS) == 7
    ends: list[End | None] = [None, None]
    ends[1 - victim] = (other.returncode, out, err)
    expect_loss(ends, victim, f"no sign of life for {share_out(SHORT_SECONDS).silence_seconds:g} s")


def expect_loss(ends: Sequence[End | None], victim: int, how: str) -> None:
    """All others have left with one line, after their last words."""
    words = f"process {victim} of {len(ends)} was lost: {how}; run the same command again\n"
    for k, end in enumerate(ends):
        if end is not None and k != victim:
            status, out, err = end
            who = f"process {k}: " if k else ""
            assert (status, out) == (7, ""), err
            assert without_gloo(err) == f"last words\njaxtrain: error: {who}{words}"


def test_all_wake_up_after_a_common_pause() -> None:
    with started("endless", 2, seconds=SHORT_SECONDS) as several:
        several.wait_until_busy()
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for process in several.processes.values():
                process.send_signal(number)
            time.sleep(SHORT_SECONDS + 1 if number == signal.SIGSTOP else 1)
        assert [process.poll() for process in several.processes.values()] == [None, None]


@pytest.mark.parametrize("absent", [0, 1])
def test_a_process_that_never_started_ends_the_other(absent: int) -> None:
    ((status, out, err),) = run("nothing", 2, absent=[absent], seconds=2)
    assert (status, out, err.count("\n")) == (7, "", 1), err
    who = "" if absent else "process 1: "
    assert err.startswith(f"jaxtrain: error: {who}process {absent} of 2 never started: ")


@pytest.mark.parametrize("override", [False, True])
def test_a_port_that_is_taken(override: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "BIND_SECONDS", 0.2)
    monkeypatch.delenv("JAX_COORDINATOR_BIND_ADDRESS", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        if override:
            monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", f"127.0.0.1:{address[1]}")
            address = ("somewhere.else", 1)
        message = f"process 0 cannot listen on port {server.getsockname()[1]}: Address already in"
        with pytest.raises(UsageError, match=message):
            coordinator.listen(address)


def test_the_port_of_the_service_is_kept_for_it() -> None:
    with reserved_port() as port:
        with pytest.raises(OSError, match="Address already in use"):
            socket.create_server(("127.0.0.1", port))
        service = _jax.get_distributed_runtime_service(f"127.0.0.1:{port}", 1)
    socket.create_connection(("127.0.0.1", port), 10).close()
    service.shutdown()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "this.machine.has.a.name"])
def test_process_0_listens_where_it_is_expected(host: str) -> None:
    port = free_port()
    with coordinator.listen((host, port)):
        socket.create_connection(("127.0.0.1", port), 10).close()


def test_a_bad_address_to_listen_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", "x")
    with pytest.raises(UsageError, match="JAX_COORDINATOR_BIND_ADDRESS=x must be HOST:PORT"):
        coordinator.listen(("localhost", 1))
