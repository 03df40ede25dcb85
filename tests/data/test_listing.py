import os

import pytest

from jaxtrain.data import listing
from jaxtrain.errors import DataError

CONTENT = bytes(range(256)) * 3


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "photo.jpg"
    path.write_bytes(CONTENT)
    return str(path)


def test_a_file_that_comes_in_pieces_is_read_to_its_end(file, monkeypatch):
    read = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: read(descriptor, min(size, 100)))
    assert listing.content_of(file) == CONTENT


def test_a_file_that_lost_its_end_meanwhile_is_what_is_left(file, monkeypatch):
    read = os.read

    def shortened(descriptor, size):
        os.truncate(file, 500)
        return read(descriptor, size)

    monkeypatch.setattr(os, "read", shortened)
    assert listing.content_of(file) == CONTENT[:500]


@pytest.mark.parametrize("most", [50, 1000])
@pytest.mark.parametrize("size", [0, 120, 768, 5000])
def test_the_beginning_of_a_file_comes_with_its_status(file, size, most, monkeypatch):
    read, asked = os.read, []

    def in_pieces(descriptor, size):
        asked.append(size)
        return read(descriptor, min(size, most))

    monkeypatch.setattr(os, "read", in_pieces)
    content, status = listing.beginning_of(file, size)
    assert content == CONTENT[:size]
    assert status == os.stat(file)
    assert max(asked) <= size


def test_the_status_is_that_after_reading(file, monkeypatch):
    read = os.read

    def shortened(descriptor, size):
        content = read(descriptor, size)
        os.truncate(file, 500)
        return content

    monkeypatch.setattr(os, "read", shortened)
    content, status = listing.beginning_of(file, len(CONTENT))
    assert (content, status.st_size) == (CONTENT, 500)


def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "photo.jpg")
    with pytest.raises(DataError, match="the file is no regular one"):
        listing.content_of(str(tmp_path / "photo.jpg"))


def test_what_is_too_large_is_refused_unread(file, monkeypatch):
    monkeypatch.setattr(listing, "_MAX_FILE_BYTES", 700)
    monkeypatch.setattr(os, "read", None)
    with pytest.raises(DataError, match="the file has 768 bytes, more than the 700 that"):
        listing.content_of(file)


@pytest.mark.parametrize(
    ("name", "said"), [("", "is no regular one"), ("none.jpg", "No such file or directory")]
)
def test_what_cannot_be_read_stays_closed(name, said, tmp_path):
    before = os.listdir("/proc/self/fd")
    with pytest.raises(DataError, match=said):
        listing.content_of(str(tmp_path / name))
    with pytest.raises(DataError, match=r"the file cannot be read: (Is a|No such)"):
        listing.beginning_of(str(tmp_path / name), 1)
    assert os.listdir("/proc/self/fd") == before
