import contextlib
import errno
import fcntl
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

from jaxtrain.data import cache, silent
from jaxtrain.data.cache import chunk, clean, disk
from jaxtrain.data.split import Identity, RawSplit
from jaxtrain.errors import DataError, UsageError

COUNT = 40


class Pictures(RawSplit):
    """Images that show their number and their version."""

    name, channels, image_shape, origin = "train", 3, None, "here"

    def __init__(self, names=range(COUNT), versions=None, seconds=0.0):
        self.names = list(names)
        self.size = len(self.names)
        self.versions = versions or {}
        self.labels = np.zeros(self.size, np.int32)
        self.decoded = []
        self.seconds = seconds

    def identities(self):
        return [
            Identity(f"{name}.jpg".encode(), str(self.versions.get(name, 0)).encode())
            for name in self.names
        ]

    def decode(self, index, enough=None):
        self.decoded.append(index)
        time.sleep(self.seconds)
        name = self.names[index]
        shape = (1 + name % 4, 2 + name % 3, 3)
        return np.full(shape, (name + 100 * self.versions.get(name, 0)) % 256, np.uint8)

    fingerprint = "0"


def kept(folder, raw, how="whole", shape=None):
    return cache.Disk(folder, raw.decode, raw, how=how, shape=shape)


def prepared(folder, raw, **options):
    images = kept(folder, raw, **options)
    images.prepare(silent, None)
    return images


def check(images, raw):
    """All images are as they are when they are made."""
    before = len(raw.decoded)
    for index in range(raw.size):
        found = images.get(index)
        assert not found.flags.writeable
        raw_before = list(raw.decoded)
        assert np.array_equal(found, raw.decode(index))
        raw.decoded = raw_before
    assert len(raw.decoded) == before, "some were made again"


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(disk, "_CHUNK", 4)
    monkeypatch.setattr(disk, "_SAMPLE", 1)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


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


@pytest.mark.parametrize("what", ["how", "decoder", "layout"])
def test_images_made_in_another_way_are_others(tmp_path, monkeypatch, what):
    prepared(tmp_path, Pictures())
    before = names(tmp_path)
    if what == "layout":
        monkeypatch.setattr(chunk, "LAYOUT", 0)
    if what == "decoder":
        monkeypatch.setattr(disk.importlib.metadata, "version", lambda name: "0")
    raw = Pictures()
    prepared(tmp_path, raw, how="half" if what == "how" else "whole")
    assert set(raw.decoded) == set(range(COUNT))
    assert len(names(tmp_path)) == 2 * len(before)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: bytes(len(content)),
        lambda content: content[:-60] + b"x" + content[-59:],
        lambda content: content + b"x",
    ],
)
def test_what_is_not_whole_is_made_again(tmp_path, damage):
    prepared(tmp_path, Pictures())
    victim = sorted(tmp_path.iterdir())[2]
    victim.write_bytes(damage(victim.read_bytes()))
    raw = Pictures()
    images = prepared(tmp_path, raw)
    assert 0 < len(set(raw.decoded)) < 15
    check(images, raw)


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


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot be used: Not a directory; set data.cache_path"):
        prepared(tmp_path / "file" / "cache", Pictures())


def test_what_nobody_uses_any_more_is_removed(tmp_path):
    prepared(tmp_path, Pictures())
    there = sorted(tmp_path.iterdir())
    month = time.time() - 31 * 86_400
    os.utime(there[0], (month, month))
    others = Pictures(range(1000, 1004))
    prepared(tmp_path, others)
    assert not there[0].exists()
    assert all(path.exists() for path in there[1:])
    old = time.time() - 20 * 86_400
    os.utime(there[1], (old, old))
    prepared(tmp_path, Pictures())
    assert there[1].stat().st_mtime > old + 86_400  # it was used
    os.utime(there[1], (month, month))
    again = Pictures()
    prepared(tmp_path, again)
    assert len(again.decoded) < COUNT / 2  # what was removed is made again, what is used is not
    assert there[1].exists()


def test_only_its_own_files_are_removed(tmp_path):
    prepared(tmp_path, Pictures())
    whole = sorted(tmp_path.iterdir())[0].read_bytes()
    own = tmp_path / f"{'0' * 32}.images"
    foreign = [
        tmp_path / "holiday.images",
        tmp_path / f"{'1' * 31}.images",
        tmp_path / f"{'1' * 32}.images",  # without the mark
        tmp_path / f"{'2' * 32}.images",
        tmp_path / f"{'A' * 32}.images",
        tmp_path / f"{'3' * 32}.images.bak",
    ]
    for path in (own, *foreign):
        path.write_bytes(whole)
    foreign[2].write_bytes(b"my own pictures, which are larger than the mark of a chunk")
    foreign[3].write_bytes(b"")
    (tmp_path / f"{'4' * 32}.images").mkdir()
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0))
    prepared(tmp_path, Pictures(range(3)))
    assert not own.exists()
    assert [path.exists() for path in foreign] == [True] * len(foreign)
    assert (tmp_path / f"{'4' * 32}.images").is_dir()


def temporary_of(folder, node, number):
    path = folder / f".{number:032x}.images.{node}.{os.getpid()}.0123abcd.tmp"
    path.write_bytes(b"")
    return path


def test_what_others_are_writing_is_left_alone(tmp_path):
    here, elsewhere = os.uname().nodename, "another.host"
    # All have the id of a process that lives here: in another container it may be any one.
    written = temporary_of(tmp_path, here, 0)
    left = temporary_of(tmp_path, here, 1)
    young = temporary_of(tmp_path, elsewhere, 2)
    old = temporary_of(tmp_path, elsewhere, 3)
    old_and_written = temporary_of(tmp_path, elsewhere, 4)
    foreign = tmp_path / "notes.tmp"
    foreign.write_bytes(b"")
    for path in (written, old, old_and_written, foreign):
        os.utime(path, (0, 0))
    with written.open() as first, old_and_written.open() as second:
        fcntl.flock(first, fcntl.LOCK_EX)
        fcntl.flock(second, fcntl.LOCK_EX)
        prepared(tmp_path, Pictures(range(3)))
    paths = (written, left, young, old, old_and_written, foreign)
    assert [path.exists() for path in paths] == [True, False, True, False, True, True]


def test_on_a_disk_without_locks_what_is_old_is_left_over(tmp_path, monkeypatch):
    def unknown(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unknown)
    young = temporary_of(tmp_path, os.uname().nodename, 0)
    old = temporary_of(tmp_path, os.uname().nodename, 1)
    os.utime(old, (0, 0))
    raw = Pictures()
    check(prepared(tmp_path, raw), raw)
    assert [path.exists() for path in (young, old)] == [True, False]


def test_what_is_written_is_locked_from_the_beginning_to_the_end(tmp_path, monkeypatch):
    path = tmp_path / f"{'0' * 32}.images"
    seen = []

    def images():
        for _ in range(3):
            clean.clean(tmp_path)
            seen.append(names(tmp_path))
            yield np.zeros((1, 1, 3), np.uint8)

    lock, created = fcntl.flock, []

    def too_late(file, operation):
        """Another process takes the file for one that is left over, once."""
        if operation == fcntl.LOCK_EX and not created:
            created.append(file.name)
            clean.clean(tmp_path)
        lock(file, operation)

    replace = os.replace

    def cleaned(source, target):
        clean.clean(tmp_path)
        replace(source, target)

    monkeypatch.setattr(fcntl, "flock", too_late)
    monkeypatch.setattr(os, "replace", cleaned)
    chunk.write(path, images())
    assert len(created) == 1
    assert all(len(there) == 1 and there[0].endswith(".tmp") for there in seen)
    assert names(tmp_path) == [path.name]
    assert chunk.opened(path, 3) is not None


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


def test_that_too_many_files_are_open_is_said_and_nothing_is_made_again(tmp_path, monkeypatch):
    prepared(tmp_path, Pictures(range(200)))
    there = names(tmp_path)
    raw = Pictures(range(200))
    monkeypatch.setattr(disk, "open_files", lambda: 4096)
    with at_most_open(20) as limit, pytest.raises(UsageError) as error:
        prepared(tmp_path, raw)
    assert re.fullmatch(
        rf"data\.cache=disk: {re.escape(str(tmp_path))}(/[0-9a-f]{{32}}\.images)? cannot be "
        r"opened: Too many open files; raise the number of files that may be open, "
        rf"{limit} for this process \(ulimit -n\), or set data\.cache=memory",
        str(error.value),
    )
    assert raw.decoded == []
    assert names(tmp_path) == there


def refusal(place):
    """What is said of a place when the data is opened."""
    raw = Pictures()
    with pytest.raises(UsageError) as error:
        cache.Cache("disk", str(place)).images(raw.decode, raw, how="whole", shape=None)
    return str(error.value)


def test_a_place_that_cannot_be_used_is_said_before_anything_is_written(open_place, read_only):
    folder = open_place / "folder"
    folder.mkdir()
    (open_place / "file").write_text("")
    (open_place / "nowhere").symlink_to(open_place / "gone")
    said = "cannot be used: {}; set data.cache_path to a folder that can be written, or set "
    for place, named, why in (
        ("file", "file", "Not a directory"),
        ("file/a/b", "file", "Not a directory"),
        ("nowhere/a", "nowhere", "No such file or directory"),
        ("x" * 300, "x" * 300, "File name too long"),
    ):
        assert refusal(open_place / place) == (
            f"data.cache=disk: {open_place / named} {said.format(why)}data.cache=memory"
        )
    for place in (folder, folder / "a" / "b"):
        with read_only(folder):
            assert refusal(place) == (
                f"data.cache=disk: {folder} {said.format('Permission denied')}data.cache=memory"
            )
        raw = Pictures()
        cache.Cache("disk", str(place)).images(raw.decode, raw, how="whole", shape=None)
    assert names(folder) == []
    assert raw.decoded == []


def test_a_disk_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    class ReadOnly:
        f_flag = os.ST_RDONLY

    monkeypatch.setattr(os, "statvfs", lambda path: ReadOnly)
    assert "cannot be used: Read-only file system; set data.cache_path" in refusal(tmp_path)


def test_the_place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_folder(None) == tmp_path / "jaxtrain" / "images"
    assert cache.cache_folder("/somewhere") == disk.Path("/somewhere")
    with pytest.raises(UsageError, match="gs://b/c is no local folder"):
        cache.cache_folder("gs://b/c")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(UsageError, match=r"has no home folder; set data\.cache_path"):
        cache.cache_folder(None)
