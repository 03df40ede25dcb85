"""The installed command as several processes that find each other on this machine."""

import contextlib
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

from e2e.command import TIMEOUT_SECONDS, Command, Completed, result
from ports import free_port

Process = subprocess.Popen[str]


@contextlib.contextmanager
def started(
    command: Command,
    count: int,
    *words: str,
    own: Mapping[int, Sequence[str]] | None = None,
    absent: Sequence[int] = (),
    **options: Any,
) -> Iterator[list[Process]]:
    """Starts `count` processes with these words.

    Args:
        command: where they run.
        count: how many there are.
        words: the arguments of all.
        own: more arguments of one.
        absent: those that are not started.
        options: as for `Command.start`.
    """
    address = f"127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                command.start(
                    *words,
                    *(own or {}).get(index, ()),
                    environment={
                        "JAX_COORDINATOR_ADDRESS": address,
                        "JAX_NUM_PROCESSES": str(count),
                        "JAX_PROCESS_ID": str(index),
                    },
                    **options,
                )
            )
            for index in range(count)
            if index not in absent
        ]


def ended(processes: Sequence[Process]) -> list[Completed]:
    """Waits for all."""

    def end(process: Process) -> Completed:
        out, err = process.communicate(timeout=TIMEOUT_SECONDS)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    with futures.ThreadPoolExecutor(len(processes)) as pool:
        return list(pool.map(end, processes))


def pod_result(command: Command, count: int, *words: str, **options: Any) -> dict[str, Any]:
    """Runs what must succeed; returns what the first process, and no other, says on stdout."""
    with started(command, count, *words, **options) as processes:
        first, *others = ended(processes)
    for other in others:
        assert (other.returncode, other.stdout, said(other)) == (0, "", []), first.stderr
    return result(first)


def said(done: Completed) -> list[str]:
    """The lines on stderr, without those of Gloo, which connects the CPU devices.

    It says one for each device, from a thread each, so that they may run into each other.
    """
    lines = done.stderr.splitlines()
    return [line for line in lines if line.strip() and not re.search("Gloo|peer ranks", line)]


def wait_until(ready: Callable[[], bool], processes: Sequence[Process]) -> None:
    """Waits until `ready()`, while all processes live."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not ready():
        ends = [process.poll() for process in processes]
        assert ends == [None] * len(processes), [p.communicate()[1] for p in processes]
        assert time.monotonic() < deadline
        time.sleep(0.02)
