import errno
import fcntl
import os
import time

import pytest
from kept_images import COUNT, Pictures, check, prepared


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


def test_what_a_long_run_uses_is_not_removed(tmp_path):
    images = prepared(tmp_path, Pictures())
    there = sorted(tmp_path.iterdir())
    month = time.time() - 31 * 86_400
    for path in there:
        os.utime(path, (month, month))
    prepared(tmp_path, Pictures(range(1000, 1004)))
    assert all(path.exists() for path in there)
    del images
    prepared(tmp_path, Pictures(range(1000, 1004)))
    assert all(path.exists() for path in there)  # it was used until now
    for path in there:
        os.utime(path, (month, month))
    prepared(tmp_path, Pictures(range(1000, 1004)))
    assert not any(path.exists() for path in there)


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.ENOSYS, errno.EBADF])
def test_on_a_disk_without_locks_what_is_used_looks_so(tmp_path, monkeypatch, error):
    def unknown(file, operation):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", unknown)
    raw = Pictures()
    images = prepared(tmp_path, raw)
    check(images, raw)
    there = sorted(tmp_path.iterdir())
    month = time.time() - 31 * 86_400
    os.utime(there[0], (month, month))
    prepared(tmp_path, Pictures(range(1000, 1004)))
    assert [path.exists() for path in there] == [False] + [True] * (len(there) - 1)
    check(images, raw)  # what is removed can be read on


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
