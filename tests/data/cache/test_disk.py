import contextlib
import errno
import itertools
import multiprocessing
import os
import re
import resource
import shutil
import signal
import time
from collections import namedtuple

import numpy as np
import pytest
from kept_images import COUNT, Pictures, check, kept, names, prepared

from jaxtrain.data import decode, silent
from jaxtrain.data.cache import chunk, disk
from jaxtrain.errors import DataError, UsageError


def test_images_are_made_once(tmp_path):
    folder = tmp_path / "a" / "b"
    raw = Pictures()
    images = prepared(folder, raw)
    assert len(raw.decoded) == COUNT + 1  # one to tell how much room they need
    check(images, raw)
    again = Pictures()
    check(prepared(folder, again), again)
    assert again.decoded == []
    assert all(name.endswith(".images") for name in names(folder))
    assert len(names(folder)) > 4


def test_nothing_is_written_before_it_is_prepared(tmp_path):
    raw = Pictures()
    images = kept(tmp_path / "cache", raw)
    for index in (3, 3, 7):
        images.get(index)
    assert raw.decoded == [3, 3, 7]
    assert not (tmp_path / "cache").exists()


def test_progress_counts_what_is_there(tmp_path):
    raw = Pictures(range(30))
    prepared(tmp_path, raw)
    said = []
    more = Pictures(range(COUNT))
    images = kept(tmp_path, more)
    images.prepare(lambda *args: said.append(args), None)
    assert [done for _, done, _ in said] == list(range(COUNT - len(said) + 1, COUNT + 1))
    assert {(what, total) for what, _, total in said} == {("cache", COUNT)}
    said.clear()
    prepared(tmp_path, more)
    assert said == []


def test_a_new_a_changed_and_a_missing_file_change_few_chunks(tmp_path):
    prepared(tmp_path, Pictures(range(30)))
    for raw in (
        Pictures(range(31)),
        Pictures(range(30), versions={5: 1}),
        Pictures([*range(12), *range(13, 30)]),
        Pictures(reversed(range(30))),
    ):
        images = prepared(tmp_path, raw)
        made = set(raw.decoded)
        assert len(made) <= 12
        check(images, raw)
    assert made == set()  # the order changes nothing


@pytest.mark.parametrize("what", ["how", "decoder", "jaxtrain", "layout"])
def test_images_made_in_another_way_are_others(tmp_path, monkeypatch, what):
    prepared(tmp_path, Pictures())
    before = names(tmp_path)
    if what == "layout":
        monkeypatch.setattr(chunk, "LAYOUT", 0)
    if what == "decoder":
        monkeypatch.setattr(decode, "DECODER", "Pillow 0, simplejpeg 0")
    if what == "jaxtrain":
        monkeypatch.setattr(disk, "__version__", "0")
    raw = Pictures()
    prepared(tmp_path, raw, how="half" if what == "how" else "whole")
    assert set(raw.decoded) == set(range(COUNT))
    assert len(names(tmp_path)) == 2 * len(before)


def test_an_image_that_cannot_be_made_is_said_and_leaves_nothing(tmp_path):
    class Broken(Pictures):
        def decode(self, index, enough=None):
            if index == 17:
                raise DataError("17 is broken")
            return super().decode(index)

    with pytest.raises(DataError, match="17 is broken"):
        prepared(tmp_path, Broken())
    assert all(name.endswith(".images") for name in names(tmp_path))
    raw = Pictures()
    check(prepared(tmp_path, raw), raw)


def forked(target, *args):
    process = multiprocessing.get_context("fork").Process(target=target, args=args)
    process.start()
    return process


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork.*:RuntimeWarning")
@pytest.mark.parametrize("when", [2, 11])
def test_a_killed_process_leaves_nothing_that_is_believed(tmp_path, when):
    process = forked(prepared, tmp_path, Pictures(seconds=0.01))
    deadline = time.monotonic() + 20
    while len(names(tmp_path)) < when and time.monotonic() < deadline:
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    there = names(tmp_path)
    assert any(name.endswith(".tmp") for name in there)
    raw = Pictures()
    images = prepared(tmp_path, raw)
    check(images, raw)
    assert not any(name.endswith(".tmp") for name in names(tmp_path))
    if when > 2:
        assert len(set(raw.decoded)) < COUNT  # what was whole is used


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork.*:RuntimeWarning")
def test_processes_may_make_it_at_once(tmp_path):
    def run(seed):
        raw = Pictures(seconds=0.002)
        check(prepared(tmp_path, raw), raw)
        (tmp_path / f"made-{seed}").write_text(str(len(raw.decoded)))

    processes = [forked(run, seed) for seed in range(3)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    made = [int((tmp_path / f"made-{seed}").read_text()) for seed in range(3)]
    assert sum(made) < 3 * COUNT  # they share the work
    raw = Pictures()
    prepared(tmp_path, raw)
    assert raw.decoded == []


Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize("shape", [None, (4, 2, 3)])
def test_a_lack_of_room_is_said_before_anything_is_written(tmp_path, monkeypatch, shape):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 2**26 + 40 * 24 - 1))
    raw = Pictures([3] * COUNT)  # 4 x 2 x 3 bytes each
    with pytest.raises(UsageError) as error:
        prepared(tmp_path / "cache", raw, shape=shape)
    assert str(error.value) == (
        "data.cache=disk: the 40 decoded images of split train need about 9.6e-07 GB, but 0.0671 "
        f"GB are free in {tmp_path / 'cache'}; make room, set data.cache_path to a folder on "
        "another disk, or set data.cache=memory"
    )
    assert names(tmp_path / "cache") == []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 2**26 + 40 * 24))
    check(prepared(tmp_path / "cache", raw, shape=shape), raw)


@pytest.mark.parametrize("shape", [None, (4, 2, 3)])
def test_room_is_looked_for_without_making_anything(tmp_path, monkeypatch, shape):
    free = 2**26 + 40 * 24
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, free))
    folder = tmp_path / "a" / "cache"
    raw = Pictures([3] * COUNT)
    images = kept(folder, raw, shape=shape)
    assert images.check_room(None, 0) == 40 * 24
    assert images.check_room(np.arange(30), 10 * 24) == 30 * 24
    with pytest.raises(UsageError, match=r"the 30 decoded images .* but 0\.0671 GB are free in "):
        images.check_room(np.arange(30), 10 * 24 + 1)
    assert np.array_equal(images.get(5), raw.decode(5))
    assert not folder.parent.exists()
    images.check_room(None, 0)
    images.prepare(silent, None)
    raw.decoded.clear()
    check(images, raw)
    assert images.check_room(None, 2**40) == 0  # nothing is going to be written
    for rows in (np.arange(3), np.arange(20)):
        images.check_room(np.arange(3), 0)
        images.prepare(silent, rows)
        assert [images.find(index) is not None for index in range(COUNT)] == [
            index in rows for index in range(COUNT)
        ]


def test_a_disk_that_gets_full_is_said(tmp_path, monkeypatch):
    def full(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match=r"is full \(No space left on device\); make room, "):
        prepared(tmp_path, Pictures())
    assert names(tmp_path) == []


@contextlib.contextmanager
def at_most_open(more):
    """This process may open so many more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    there = set(map(int, os.listdir("/proc/self/fd")))
    free = (number for number in range(hard) if number not in there)
    limit = next(itertools.islice(free, more, None))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield limit
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_few_files_stay_open(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "open_files", lambda: 7)
    before = len(os.listdir("/proc/self/fd"))
    raw = Pictures(range(200))
    images = prepared(tmp_path, raw)
    assert len(names(tmp_path)) == 4
    assert len(os.listdir("/proc/self/fd")) == before + 4
    check(images, raw)


@pytest.mark.parametrize("begun", [False, True])
def test_that_too_many_files_are_open_is_said_and_nothing_is_made(tmp_path, monkeypatch, begun):
    prepared(tmp_path, Pictures(range(200)))
    there = names(tmp_path)
    raw = Pictures(range(200))
    monkeypatch.setattr(disk, "open_files", lambda: 4096)
    images = kept(tmp_path, raw)
    # `check` calls the other one.
    begin = (
        (lambda: images.prepare(silent, None)) if begun else (lambda: images.check_room(None, 0))
    )
    with at_most_open(20) as limit, pytest.raises(UsageError) as error:
        begin()
    assert re.fullmatch(
        rf"data\.cache=disk: {re.escape(str(tmp_path))}(/[0-9a-f]{{32}}\.images)? cannot be "
        r"opened: Too many open files; raise the number of files that may be open, "
        rf"{limit} for this process \(ulimit -n\), or set data\.cache=memory",
        str(error.value),
    )
    assert raw.decoded == []
    assert names(tmp_path) == there
