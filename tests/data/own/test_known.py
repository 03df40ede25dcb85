"""What is kept of a look at files: used while they are the same, never trusted when damaged."""

import os
from concurrent import futures
from pathlib import Path

import pytest
from image_files import write_half_jpeg, write_image

from jaxtrain.data.own import scan
from jaxtrain.data.own.known import Known
from jaxtrain.data.own.scan import look_at
from jaxtrain.data.split import silent

NAME = ".jaxtrain-files.npz"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(5):
        write_image(tmp_path / f"{number}.png", number)
    write_half_jpeg(tmp_path / "half.jpg")
    os.symlink("nowhere", tmp_path / "gone.png")
    return tmp_path


PATHS = [*(f"{number}.png" for number in range(5)), "half.jpg", "gone.png"]


def decoded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[str | None]]:
    """Files whose content was read, and the errors."""
    read = []

    def content_of(path: str) -> bytes:
        read.append(os.path.basename(path))
        return Path(path).read_bytes()

    monkeypatch.setattr(scan, "content_of", content_of)
    results = look_at(Known(folder), PATHS, silent, decoded=True)
    return sorted(read), [result.error for result in results]


def test_only_what_is_new_or_changed_is_read_again(folder, monkeypatch):
    read, errors = decoded(folder, monkeypatch)
    assert read == sorted(PATHS[:-1])
    assert [error is None for error in errors] == [True] * 5 + [False] * 2
    assert decoded(folder, monkeypatch) == ([], errors)
    write_image(folder / "half.jpg", 7)
    write_image(folder / "3.png", 9)
    os.utime(folder / "3.png", ns=(0, 0))
    (folder / "gone.png").unlink()
    write_image(folder / "gone.png", 8)
    read, errors = decoded(folder, monkeypatch)
    assert read == ["3.png", "gone.png", "half.jpg"]
    assert errors == [None] * 7


def test_equal_files_have_equal_digests(folder):
    write_image(folder / "4.png", 0)
    digests = [result.digest for result in look_at(Known(folder), PATHS, silent, decoded=True)]
    assert digests[0] == digests[4]
    assert len(set(digests[:5])) == 4
    again = [result.digest for result in look_at(Known(folder), PATHS, silent, decoded=True)]
    assert digests == again


@pytest.mark.parametrize("damage", [b"", b"text", "half", "byte"])
def test_a_damaged_record_is_made_again(folder, monkeypatch, damage):
    before = decoded(folder, monkeypatch)
    content = (folder / NAME).read_bytes()
    if damage == "half":
        damage = content[: len(content) // 2]
    elif damage == "byte":
        middle = content.index(b"0.png")
        damage = content[:middle] + b"9" + content[middle + 1 :]
    (folder / NAME).write_bytes(damage)
    assert decoded(folder, monkeypatch) == before


def test_where_the_folder_cannot_be_written(open_place, monkeypatch, read_only):
    folder, home = open_place / "images", open_place / "home"
    write_image(folder / "1.png", 1)
    home.mkdir()
    home.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    with read_only(folder):
        (first,) = look_at(Known(folder), ["1.png"], silent, decoded=True)
        monkeypatch.setattr(scan, "content_of", None)
        assert look_at(Known(folder), ["1.png"], silent, decoded=True) == [first]
    assert not (folder / NAME).exists()
    assert list(home.rglob("jaxtrain-files.npz"))


def test_an_index_that_only_its_owner_may_write_hides_no_other(open_place, monkeypatch, read_only):
    """What the folder's says of a file may be stale, or less than is asked."""
    folder, home = open_place / "images", open_place / "home"
    for number in range(3):
        write_image(folder / f"{number}.png", number)
    home.mkdir()
    home.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    paths = ["0.png", "1.png", "2.png"]
    look_at(Known(folder), paths[:2], silent, decoded=False)
    write_image(folder / "1.png", 7)
    with read_only(folder):
        first = look_at(Known(folder), paths, silent, decoded=True)
        monkeypatch.setattr(scan, "content_of", None)
        for decoded in (True, False):
            assert look_at(Known(folder), paths, silent, decoded=decoded) == first


def test_what_is_gone_is_dropped(folder):
    look_at(Known(folder), PATHS, silent, decoded=True)
    states = {path: (folder / path).stat() for path in PATHS[:-1]}

    def kept() -> set[str]:
        known = Known(folder)
        return {
            path
            for path, status in states.items()
            if known.get(path, status, decoded=True) is not None
        }

    (folder / PATHS[0]).unlink()
    (folder / PATHS[1]).unlink()
    write_image(folder / "new.png", 9)
    look_at(Known(folder, ["new.png", PATHS[0]]), ["new.png"], silent, decoded=True)
    assert kept() == set(states) - {PATHS[1]}  # the others may be of other lists


def test_a_file_that_is_overwritten_with_its_old_time_is_read_again(folder, monkeypatch):
    decoded(folder, monkeypatch)
    path = folder / "2.png"
    status = path.stat()
    path.write_bytes(b"x" * status.st_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    read, errors = decoded(folder, monkeypatch)
    assert read == ["2.png"]
    assert errors[2] is not None


def test_what_was_only_read_is_decoded_when_that_is_asked(folder, monkeypatch):
    known = Known(folder)
    read = look_at(known, PATHS, silent, decoded=False)
    assert [result.error is None for result in read] == [True] * 6 + [False]
    again, errors = decoded(folder, monkeypatch)
    assert again == sorted(PATHS[:-1])
    assert [error is None for error in errors] == [True] * 5 + [False] * 2


def test_what_was_decoded_is_told_only_when_that_is_asked(folder):
    fresh = look_at(Known(folder), PATHS, silent, decoded=False)
    look_at(Known(folder), PATHS, silent, decoded=True)
    assert look_at(Known(folder), PATHS, silent, decoded=False) == fresh


def test_what_another_decoder_found_does_not_count(folder, monkeypatch):
    decoded(folder, monkeypatch)
    monkeypatch.setattr("jaxtrain.data.own.known.DECODER", "another one")
    assert decoded(folder, monkeypatch)[0] == sorted(PATHS[:-1])


def test_threads_keep_what_all_of_them_found(folder):
    known = Known(folder)
    with futures.ThreadPoolExecutor(4) as pool:
        for _ in pool.map(lambda path: look_at(known, [path], silent, decoded=True), PATHS * 3):
            pass
    kept = Known(folder)
    for path in PATHS[:-1]:
        assert kept.get(path, (folder / path).stat(), decoded=True) is not None
