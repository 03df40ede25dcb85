import errno
import multiprocessing
import os
import shutil
import signal
import time
from collections import namedtuple

import numpy as np
import pytest

from jaxtrain.data import cache, silent
from jaxtrain.data.cache import chunk, disk
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


def test_what_others_are_writing_is_left_alone(tmp_path):
    name = f".{'0' * 32}.images"
    mine = tmp_path / f"{name}.{os.uname().nodename}.{os.getpid()}.0123abcd.tmp"
    elsewhere = tmp_path / f"{name}.another.host.1.0123abcd.tmp"
    old = tmp_path / f"{name}.another.host.2.0123abcd.tmp"
    foreign = tmp_path / "notes.tmp"
    for path in (mine, elsewhere, old, foreign):
        path.write_bytes(b"")
    os.utime(old, (0, 0))
    os.utime(foreign, (0, 0))
    prepared(tmp_path, Pictures(range(3)))
    assert [path.exists() for path in (mine, elsewhere, old, foreign)] == [True, True, False, True]


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
