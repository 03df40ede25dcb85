import os
from pathlib import Path

import pytest

from jaxtrain.errors import CheckpointError, UsageError
from jaxtrain.files import atomic_folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fail_half_way(target: Path, error: BaseException) -> None:
    with atomic_folder(target) as folder:
        (folder / "file").write_text("half")
        raise error


def test_the_folder_gets_to_its_place_whole(tmp_path):
    target = tmp_path / "a" / "model"
    with atomic_folder(target) as folder:
        assert folder.parent == target.parent
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text("new")
        assert not target.exists()
    assert names(target.parent) == ["model"]
    assert (target / "inner" / "file").read_text() == "new"


def test_a_failure_leaves_nothing_and_what_was_there(tmp_path):
    target = tmp_path / "model"
    with pytest.raises(ZeroDivisionError):
        fail_half_way(target, ZeroDivisionError())
    assert names(tmp_path) == []
    target.mkdir()
    (target / "file").write_text("old")
    with pytest.raises(KeyboardInterrupt):
        fail_half_way(target, KeyboardInterrupt())
    assert names(tmp_path) == ["model"]
    assert (target / "file").read_text() == "old"


def test_what_is_there_is_replaced(tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    (target / "old").write_text("old")
    with atomic_folder(target) as folder:
        (folder / "new").write_text("new")
        assert names(target) == ["old"]
    assert names(tmp_path) == ["model"]
    assert names(target) == ["new"]


def test_what_killed_processes_left_is_removed_and_brought_back(tmp_path):
    dead = 2**22 + 1  # above any process's number
    alive = os.getppid()
    (tmp_path / f".model.{dead}.tmp").mkdir()
    (tmp_path / f".model.{alive}.tmp").mkdir()
    (tmp_path / f".other.{dead}.tmp").mkdir()
    (tmp_path / f".model.{dead}.old").mkdir()
    (tmp_path / f".model.{dead}.old" / "file").write_text("put aside")
    with pytest.raises(ZeroDivisionError), atomic_folder(tmp_path / "model"):
        raise ZeroDivisionError
    assert names(tmp_path) == [f".model.{alive}.tmp", f".other.{dead}.tmp", "model"]
    assert (tmp_path / "model" / "file").read_text() == "put aside"


def test_a_place_that_cannot_be_written_is_named(open_place, read_only):
    with (
        read_only(open_place),
        pytest.raises(UsageError, match=r"cannot write .*/model: Permission denied; make it"),
        atomic_folder(open_place / "model"),
    ):
        pass


def test_a_full_disk_is_said(tmp_path):
    with (
        pytest.raises(CheckpointError, match=r"cannot write .*/model: No space left .* make room"),
        atomic_folder(tmp_path / "model"),
    ):
        raise OSError(28, os.strerror(28))
    assert names(tmp_path) == []
