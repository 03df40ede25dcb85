import ctypes
import os
import threading

import pytest

from jaxtrain.data import threads


@pytest.fixture
def loaded(monkeypatch):
    """Sets the C library; what is kept of the process's own settings is as before afterwards."""
    threads.reuse_freed_memory.cache_clear()

    def load(library):
        monkeypatch.setattr(ctypes, "CDLL", lambda name: library)

    yield load
    monkeypatch.undo()
    threads.reuse_freed_memory.cache_clear()


def test_freed_memory_is_kept_once(loaded):
    calls = []

    class Library:
        @staticmethod
        def mallopt(parameter, value):
            calls.append((parameter, value))

    loaded(Library)
    threads.reuse_freed_memory()
    # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h; it refuses more than 32 MiB.
    assert calls == [(-1, 128 * 2**20), (-3, 32 * 2**20)]
    threads.reuse_freed_memory()
    assert len(calls) == 2


def test_this_c_library_takes_the_settings(loaded):
    """`mallopt` says 0 to what it does not know, or finds too large."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        pytest.skip("this C library has no mallopt")
    said = []

    class Library:
        @staticmethod
        def mallopt(parameter, value):
            said.append(library.mallopt(parameter, value))

    loaded(Library)
    threads.reuse_freed_memory()
    assert said == [1, 1]


def test_a_c_library_without_mallopt_is_no_error(loaded):
    loaded(object())
    threads.reuse_freed_memory()


def test_no_c_library_is_no_error(monkeypatch, loaded):
    def missing(name):
        raise OSError("no such library")

    loaded(None)
    monkeypatch.setattr(ctypes, "CDLL", missing)
    threads.reuse_freed_memory()


def test_what_has_not_begun_is_dropped():
    begun, going_on = threading.Event(), threading.Event()

    def first():
        begun.set()
        going_on.wait(20)

    with threads.workers(1) as pool:
        running, waiting = pool.submit(first), pool.submit(pytest.fail, "it has begun")
        begun.wait(20)
        waiting.add_done_callback(lambda _: going_on.set())
    assert running.done()
    assert waiting.cancelled()


def test_as_many_threads_as_usable_cpus(monkeypatch):
    for cpus, expected in ((3, 3), (64, 16)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, n=cpus: set(range(n)))
        assert threads.usable_cpus() == cpus
        assert threads.readers(None) == expected
        assert threads.readers(20) == 20
        with threads.workers() as pool:
            assert pool._max_workers == cpus
