import fcntl
import os
import threading

import numpy as np
import pytest
from kept_images import Pictures, check, names, prepared

from jaxtrain.data.cache import chunk, clean


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


def test_a_lock_that_somebody_has_for_a_moment_is_waited_for(tmp_path):
    prepared(tmp_path, Pictures(range(3)))
    (path,) = tmp_path.iterdir()
    looking = path.open("rb")
    fcntl.flock(looking, fcntl.LOCK_EX)
    timer = threading.Timer(0.05, looking.close)
    timer.start()
    images = chunk.opened(path, 3)
    timer.join()
    assert images is not None
    with path.open("rb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
