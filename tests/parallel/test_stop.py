import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from jaxtrain.parallel.stop import StopRequest


def wait_for(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_only_asks_and_the_former_handlers_come_back(number):
    before = signal.getsignal(number)
    threads = threading.active_count()
    told: list[bool] = []
    with StopRequest() as stop:
        stop.hold(lambda: told.append(True), lambda: None)
        assert not stop.requested
        os.kill(os.getpid(), number)
        wait_for(lambda: stop.requested)
        wait_for(lambda: told == [True])
    assert signal.getsignal(number) is before
    wait_for(lambda: threading.active_count() == threads)


SECOND = """
import os, signal, sys, time
from jaxtrain.parallel.stop import StopRequest
def last_words():
    print("bye", flush=True)
    raise RuntimeError("nothing may keep it")
with StopRequest() as stop:
    stop.hold(lambda: None, last_words)
    os.kill(os.getpid(), signal.SIGTERM)
    while not stop.requested:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
"""


def test_a_second_signal_ends_the_process_whatever_happens():
    found = subprocess.run(
        [sys.executable, "-c", SECOND], capture_output=True, text=True, timeout=50, check=False
    )
    assert found.returncode == 130
    assert found.stdout == "bye\n"


BEFORE = """
import os, signal, sys, time
from jaxtrain.parallel.stop import StopRequest
with StopRequest():
    os.kill(os.getpid(), int(sys.argv[1]))
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("number", "status", "said"),
    [(signal.SIGTERM, 75, "run the same command again"), (signal.SIGINT, 130, "interrupted")],
)
def test_before_there_is_anything_to_save_the_first_signal_ends_it(number, status, said):
    found = subprocess.run(
        [sys.executable, "-c", BEFORE, str(int(number))],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert found.returncode == status
    assert found.stderr.endswith(f"{said}\n")
