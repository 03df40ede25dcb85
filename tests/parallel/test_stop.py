import os
import signal
import subprocess
import sys
import threading
import time

from jaxtrain.parallel.stop import StopRequest


def wait_for(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_signal_only_asks_and_the_former_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    threads = threading.active_count()
    for number in (signal.SIGINT, signal.SIGTERM):
        with StopRequest(on_second=lambda: None) as stop:
            assert not stop.requested
            os.kill(os.getpid(), number)
            wait_for(lambda: stop.requested)
    assert signal.getsignal(signal.SIGTERM) is before
    wait_for(lambda: threading.active_count() == threads)


SECOND = """
import os, signal, sys, time
from jaxtrain.parallel.stop import StopRequest
def last_words():
    print("bye", flush=True)
    raise RuntimeError("nothing may keep it")
with StopRequest(on_second=last_words) as stop:
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
