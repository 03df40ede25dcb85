import os
import platform
from pathlib import Path

import pytest

from jaxtrain.errors import CheckpointError, UsageError
from jaxtrain.files import atomic_folder, writing


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


def test_what_is_there_is_replaced_if_it_may_be(tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    (target / "old").write_text("old")
    with atomic_folder(target, replace=True) as folder:
        (folder / "new").write_text("new")
        assert names(target) == ["old"]
    assert names(tmp_path) == ["model"]
    assert names(target) == ["new"]


def test_what_came_there_meanwhile_is_kept(tmp_path):
    target = tmp_path / "model"

    def write():
        with atomic_folder(target):
            target.mkdir()
            (target / "file").write_text("another's")

    with pytest.raises(UsageError, match="was made by someone else meanwhile"):
        write()
    assert names(tmp_path) == ["model"]
    assert (target / "file").read_text() == "another's"


def test_what_was_put_aside_comes_back_when_the_new_one_cannot(tmp_path, monkeypatch):
    target = tmp_path / "model"
    target.mkdir()
    (target / "old").write_text("old")
    rename = Path.rename

    def fail_for_new(self, to):
        if self.suffix == ".tmp":
            raise OSError(28, os.strerror(28))
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", fail_for_new)
    with (
        pytest.raises(CheckpointError, match=r"cannot write .*/model: No space left"),
        atomic_folder(target, replace=True),
    ):
        pass
    assert names(tmp_path) == ["model"]
    assert names(target) == ["old"]


def test_what_killed_processes_left_is_removed_and_brought_back(tmp_path):
    here = platform.node()
    dead = f"{here}.{2**22 + 1}.0123abcd"  # above any process's number
    alive = f"{here}.{os.getppid()}.0123abcd"
    elsewhere = f"of-another-host.{2**22 + 1}.0123abcd"
    (tmp_path / f".model.{elsewhere}.tmp").mkdir()
    (tmp_path / f".model.{dead}.tmp").mkdir()
    (tmp_path / f".model.{alive}.tmp").mkdir()
    (tmp_path / f".other.{dead}.tmp").mkdir()
    (tmp_path / f".model.{dead}.old").mkdir()
    (tmp_path / f".model.{dead}.old" / "file").write_text("put aside")
    with pytest.raises(ZeroDivisionError), atomic_folder(tmp_path / "model"):
        raise ZeroDivisionError
    kept = {f".model.{alive}.tmp", f".model.{elsewhere}.tmp", f".other.{dead}.tmp", "model"}
    assert set(names(tmp_path)) == kept
    assert (tmp_path / "model" / "file").read_text() == "put aside"


def test_a_place_that_cannot_be_written_is_named(open_place, read_only):
    with (
        read_only(open_place),
        pytest.raises(UsageError, match=r"cannot write .*/model: Permission denied; make it"),
        atomic_folder(open_place / "model"),
    ):
        pass


def test_a_full_disk_is_said_where_it_is_written(tmp_path):
    with (
        pytest.raises(CheckpointError, match=r"cannot write .*/model: No space left .* make room"),
        writing(tmp_path / "model"),
    ):
        raise OSError(28, os.strerror(28))


def test_an_error_of_the_block_is_its_own(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_folder(tmp_path / "model"):
        raise FileNotFoundError(2, "something that is read")
    assert names(tmp_path) == []
