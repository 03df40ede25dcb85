import os
from pathlib import Path

import pytest
from kept_images import Pictures, names, prepared

from jaxtrain.data.cache import Cache
from jaxtrain.data.cache.place import cache_folder
from jaxtrain.errors import UsageError


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot be used: Not a directory; set data.cache_path"):
        prepared(tmp_path / "file" / "cache", Pictures())


def refusal(place):
    """What is said of a place when the data is opened."""
    raw = Pictures()
    with pytest.raises(UsageError) as error:
        Cache("disk", str(place)).images(raw.decode, raw, how="whole", shape=None)
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
        Cache("disk", str(place)).images(raw.decode, raw, how="whole", shape=None)
    assert names(folder) == []
    assert raw.decoded == []


def test_a_disk_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    class ReadOnly:
        f_flag = os.ST_RDONLY

    monkeypatch.setattr(os, "statvfs", lambda path: ReadOnly)
    assert "cannot be used: Read-only file system; set data.cache_path" in refusal(tmp_path)


def test_the_place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder(None) == tmp_path / "jaxtrain" / "images"
    assert cache_folder("/somewhere") == Path("/somewhere")
    with pytest.raises(UsageError, match="gs://b/c is no local folder"):
        cache_folder("gs://b/c")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(UsageError, match=r"has no home folder; set data\.cache_path"):
        cache_folder(None)
