"""`scripts/launch_local.sh`: several processes of any command on this machine."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "launch_local.sh"
PROGRAM = ROOT / "tests" / "parallel" / "processes_program.py"
WAIT_SECONDS = 60
# Says its number, and where its process is, once it is ready.
READY = "echo $$ >pid.$JAX_PROCESS_ID.new; mv pid.$JAX_PROCESS_ID.new pid.$JAX_PROCESS_ID"

Completed = subprocess.CompletedProcess[str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to run in, and one that has to be empty at the end."""
    (tmp_path / "run").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    return tmp_path


def launch(*words: str, **options: Any) -> Completed:
    done = subprocess.run(
        [SCRIPT, *words],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
        **options,
    )
    assert os.listdir(os.environ["TMPDIR"]) == []
    return done


def shell(count: int, text: str, *options: str) -> Completed:
    """Runs the text by that many shells."""
    return launch(*options, str(count), "--", "sh", "-c", text)


class Running:
    """A launcher whose processes are ready."""

    def __init__(self, process: subprocess.Popen[str], count: int) -> None:
        self.process = process
        wait_for(lambda: all(Path(f"pid.{k}").exists() for k in range(count)))
        self.pids = [int(Path(f"pid.{k}").read_text()) for k in range(count)]

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=WAIT_SECONDS)
        assert os.listdir(os.environ["TMPDIR"]) == []
        wait_for(lambda: not any(map(alive, self.pids)))
        return self.process.returncode, out, err


@contextlib.contextmanager
def running(count: int, text: str, *options: str) -> Iterator[Running]:
    command = [SCRIPT, *options, str(count), "--", "sh", "-c", text]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Running(process, count)
        finally:
            process.kill()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_every_process_knows_its_place() -> None:
    text = 'echo "$JAX_PROCESS_ID of $JAX_NUM_PROCESSES at $JAX_COORDINATOR_ADDRESS" >&2'
    done = shell(3, text)
    assert (done.returncode, done.stdout) == (0, "")
    lines = sorted(done.stderr.splitlines())
    port = lines[0].rpartition(":")[2]
    assert lines == [f"[{k}] {k} of 3 at 127.0.0.1:{port}" for k in range(3)]
    assert 20000 <= int(port) < 32000


def test_stdout_is_that_of_process_0_as_it_is() -> None:
    done = shell(3, "echo text; printf last >&$((1 + JAX_PROCESS_ID % 2))")
    assert done.stdout == "text\nlast"
    assert sorted(re.findall(r"\[[12]\] (?:text|last)", done.stderr)) == [
        "[1] last",
        "[1] text",
        "[2] last",
        "[2] text",
    ]


def test_much_output_is_all_there() -> None:
    done = shell(2, "i=0; while [ $i -lt 2000 ]; do echo line $i >&2; i=$((i+1)); done; exit 3")
    for k in range(2):
        lines = [line for line in done.stderr.splitlines() if line.startswith(f"[{k}]")]
        assert lines == [f"[{k}] line {i}" for i in range(2000)]


@pytest.mark.parametrize(
    ("options", "variable", "given", "seen"),
    [
        ([], "JAX_PLATFORMS", None, "cpu"),
        ([], "JAX_PLATFORMS", "tpu,cpu", "tpu,cpu"),
        (["--devices=4"], "JAX_NUM_CPU_DEVICES", "9", "4"),
        ([], "JAX_NUM_CPU_DEVICES", "9", "9"),
        ([], "JAX_NUM_CPU_DEVICES", None, ""),
    ],
)
def test_devices(
    options: list[str],
    variable: str,
    given: str | None,
    seen: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(variable, raising=False)
    if given is not None:
        monkeypatch.setenv(variable, given)
    assert shell(1, f'echo "${variable}"', *options).stdout == f"{seen}\n"


def test_words_survive_as_they_are() -> None:
    words = ["a b", "", "*", "$HOME", "'\"", "--", "-x", "line\nbreak"]
    done = launch("1", "--", "printf", "<%s>", *words)
    assert done.stdout == "".join(f"<{word}>" for word in words)


def test_a_command_that_the_script_has_a_function_of() -> None:
    shutil.copy("/bin/echo", "say")
    path = f"{os.getcwd()}:{os.environ['PATH']}"
    assert launch("1", "--", "say", "x", env={**os.environ, "PATH": path}).stdout == "x\n"


@pytest.mark.parametrize(
    ("statuses", "worst", "said"),
    [
        ("0 0 0", 0, ""),
        ("0 75 0", 75, ""),
        ("75 7 0", 7, ""),
        ("75 7 3", 3, "launch_local: process 2 ended with status 3\n"),
        ("2 0 75", 2, "launch_local: process 0 ended with status 2\n"),
        ("7 130 7", 130, "launch_local: process 1 ended with status 130\n"),
        ("1 1 1", 1, None),
    ],
)
def test_the_worst_status_is_passed_on(statuses: str, worst: int, said: str | None) -> None:
    done = shell(3, f'set -- {statuses}; shift $JAX_PROCESS_ID; exit "$1"')
    assert done.returncode == worst
    if said is None:
        assert done.stderr in [f"launch_local: process {k} ended with status 1\n" for k in range(3)]
    else:
        assert done.stderr == said


def test_the_first_failure_counts() -> None:
    done = shell(2, "[ $JAX_PROCESS_ID = 1 ] && exit 3; sleep 1; exit 4")
    assert (done.returncode, done.stderr) == (3, "launch_local: process 1 ended with status 3\n")


@pytest.mark.parametrize("victim", [0, 2])
def test_who_was_killed_is_said(victim: int) -> None:
    text = f"{READY}; while [ -e pid.{victim} ]; do sleep 0.1; done; exit 7"
    with running(3, text) as launcher:
        os.kill(launcher.pids[victim], signal.SIGKILL)
        time.sleep(0.3)
        Path(f"pid.{victim}").unlink()
        status, _, err = launcher.end()
    assert (status, err) == (137, f"launch_local: process {victim} was killed by SIGKILL\n")


def test_a_stopped_process_is_killed_when_the_others_have_left() -> None:
    text = f"{READY}; while [ ! -e leave ]; do sleep 0.1; done; exit 7"
    with running(2, text, "--grace=1") as launcher:
        os.kill(launcher.pids[1], signal.SIGSTOP)
        Path("leave").touch()
        status, _, err = launcher.end()
    said = "launch_local: process 1 has not ended 1 s after another: it is killed\n"
    assert (status, err) == (7, said)


SIGNALS = """
trap 'echo TERM >>got.$JAX_PROCESS_ID' TERM
trap 'echo INT >>got.$JAX_PROCESS_ID' INT
trap 'echo HUP >>got.$JAX_PROCESS_ID' HUP
READY
while [ ! -e leave ]; do sleep 0.1; done
exit 75
"""


def test_signals_are_passed_on_to_all_once() -> None:
    with running(2, SIGNALS.replace("READY", READY)) as launcher:
        sent = []
        for number in ("INT", "INT", "TERM", "HUP"):
            launcher.process.send_signal(getattr(signal, f"SIG{number}"))
            sent.append(number)
            text = "".join(f"{name}\n" for name in sent)
            for k in range(2):
                got = Path(f"got.{k}")
                wait_for(lambda got=got, text=text: got.exists() and got.read_text() == text)
        Path("leave").touch()
        status, out, _ = launcher.end()  # some shells say that their `sleep` was terminated
    assert (status, out) == (75, "")


def test_a_signal_at_the_very_start_is_not_lost() -> None:
    for attempt in range(8):
        command = [SCRIPT, "4", "--", "sleep", "60"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            time.sleep(0.01 * attempt)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=WAIT_SECONDS)
            assert process.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM)
        assert os.listdir(os.environ["TMPDIR"]) == []


def test_what_a_process_leaves_behind_keeps_nobody() -> None:
    begun = time.monotonic()
    done = shell(1, "sleep 45 >/dev/null & exit 0")
    assert done.returncode == 0
    assert time.monotonic() - begun < 40


def program(scenario: str) -> list[str]:
    """The command of a process that works together with others, by the real command line."""
    words = ["train", "--config=mnist_mlp", "--config.parallel.peer_timeout_seconds=10"]
    return [sys.executable, str(PROGRAM), scenario, *words]


def test_processes_of_jaxtrain_find_each_other() -> None:
    done = launch("2", "--", *program("normal"))
    assert (done.returncode, done.stdout) == (0, '{"count": 2}\n')
    lines = [line for line in done.stderr.splitlines() if "[Gloo]" not in line]
    assert sorted(lines) == ["[0] by Python", "[1] by Python"]


def test_a_killed_process_0_is_named_by_all_who_see_it() -> None:
    command = [SCRIPT, "2", "--", *program("endless")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        launcher = Running(process, 2)
        os.kill(launcher.pids[0], signal.SIGKILL)
        status, _, err = launcher.end()
    assert status == 137
    assert sorted(line for line in err.splitlines() if "[Gloo]" not in line) == [
        "[1] jaxtrain: error: process 1: process 0 of 2 was lost: it ended without a word; run the "
        "same command again",
        "[1] last words",
        "launch_local: process 0 was killed by SIGKILL",
    ]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ([], 2, "error: say how many processes there are to be; see --help"),
        (["2"], 2, "error: say after -- what to run; see --help"),
        (["2", "--"], 2, "error: say after -- what to run"),
        (["0", "--", "true"], 2, "must be a whole number above 0, not '0'"),
        (["x", "--", "true"], 2, "must be a whole number above 0, not 'x'"),
        (["2", "true"], 2, "stray word 'true': put -- between N and the command"),
        (["--device=2", "2", "--", "true"], 2, "unknown option --device=2"),
        (["--devices=0", "2", "--", "true"], 2, "--devices=0 must be a whole number above 0"),
        (["--grace=", "2", "--", "true"], 2, "--grace= must be a whole number of seconds above 0"),
        (["2", "--", "no-such-command", "x"], 127, "error: there is no command 'no-such-command'"),
    ],
)
def test_refused(words: list[str], status: int, message: str) -> None:
    done = launch(*words)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith("launch_local: error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_help() -> None:
    done = launch("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: scripts/launch_local.sh [--devices=D] [--grace=SECONDS]")
