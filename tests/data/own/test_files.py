"""Photos that change while a run goes on: none is taken for what it was, and nothing is kept."""

import dataclasses
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from image_files import number, write_image

from jaxtrain import data
from jaxtrain.config.schema import DataConfig
from jaxtrain.data.own import files
from jaxtrain.data.split import silent
from jaxtrain.errors import DataError

COUNT = 12
LONG_AGO = 10**18  # nanoseconds since 1970


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Images of two classes, each of which says which one it is."""
    for each in range(COUNT):
        path = write_image(tmp_path / f"photos/train/{'ab'[each % 2]}/{each:02d}.bmp", each)
        os.utime(path, ns=(LONG_AGO, LONG_AGO))
    for name in "ab":
        write_image(tmp_path / "photos/val" / name / "0.bmp", 0)
    return tmp_path / "photos"


@pytest.fixture(params=["none", "memory", "disk"])
def config(request: pytest.FixtureRequest, photos: Path) -> DataConfig:
    return _config(photos, request.param)


def _config(photos: Path, cache: str, **keys: str) -> DataConfig:
    return DataConfig(
        source="folder",
        path=str(photos),
        channels=1,
        image_size=(4,),
        cache=cache,
        cache_path=str(photos.parent / "kept"),
        **keys,  # type: ignore[arg-type]
    )


def replaced(path: Path, by: int) -> None:
    """Another photo in its place, of the same size and from the same time."""
    before = path.stat()
    write_image(path, by)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def numbers(split: data.Split) -> list[int]:
    return sorted(number(split.read(np.array([index]))) for index in range(split.size))


def read(dataset: data.Dataset) -> list[int]:
    dataset.prepare(silent)
    return numbers(dataset.train)


def said_of(path: Path) -> str:
    file = re.escape(str(path))
    said = r"has changed since it was looked at; put it back, [^\n]*--fresh\)"
    return rf"^[^\n]* of split train: {file} {said}$"


@pytest.mark.parametrize("by", ["photo", "text", "longer", "shorter"])
def test_a_replaced_photo_ends_the_run_and_is_not_kept(photos, config, by):
    dataset = data.open_dataset(config)
    path = photos / "train/a/06.bmp"
    original = path.read_bytes()
    if by == "photo":
        replaced(path, 200)
    else:
        content = {"text": b"text", "longer": original + b"x", "shorter": original[:-1]}[by]
        path.write_bytes(content)
    with pytest.raises(DataError, match=said_of(path)):
        read(dataset)
    path.write_bytes(original)
    assert read(data.open_dataset(config)) == list(range(COUNT))


def test_a_run_that_is_started_again_takes_what_is_there_then(photos, config):
    data.open_dataset(config)
    replaced(photos / "train/a/06.bmp", 200)
    expected = [*(each for each in range(COUNT) if each != 6), 200]
    assert read(data.open_dataset(config)) == expected


def test_photos_that_changed_places_are_told(photos, config):
    dataset = data.open_dataset(config)
    first, second = photos / "train/a/02.bmp", photos / "train/a/04.bmp"
    first.rename(photos / "spare")
    second.rename(first)
    (photos / "spare").rename(second)
    with pytest.raises(DataError, match=r"0[24]\.bmp has changed since"):
        read(dataset)


def test_photos_whose_content_is_the_same_go_on(photos, config):
    dataset = data.open_dataset(config)
    os.utime(photos / "train/a/02.bmp")
    (photos / "train/a/04.bmp").chmod(0o600)
    copied = photos / "train/a/06.bmp"
    content = copied.read_bytes()
    copied.unlink()
    copied.write_bytes(content)
    for _ in range(2):
        assert read(dataset) == list(range(COUNT))


def test_a_copy_of_the_folder_counts_as_it_is_there(photos, config, monkeypatch):
    """With what was known of the files from before, whose times were others."""
    before = data.open_dataset(config).train.fingerprint
    copy = photos.parent / "copy"
    shutil.copytree(photos, copy, copy_function=shutil.copyfile)
    config = dataclasses.replace(config, path=str(copy))
    dataset = data.open_dataset(config)
    assert dataset.train.fingerprint == before
    replaced(photos / "train/a/06.bmp", 200)
    monkeypatch.setattr(files, "digest_of", None)
    assert read(dataset) == list(range(COUNT))


def test_photos_left_alone_are_not_hashed(config, monkeypatch):
    for _ in range(2):  # the second time by what is known of them
        dataset = data.open_dataset(config)
        with monkeypatch.context() as patched:
            patched.setattr(files, "digest_of", None)
            assert read(dataset) == list(range(COUNT))


def test_a_bad_file_that_came_later_is_a_changed_one(photos):
    """What is left out is told before a run begins."""
    dataset = data.open_dataset(_config(photos, "none", on_bad_file="skip"))
    path = photos / "train/a/06.bmp"
    path.write_bytes(b"text")
    with pytest.raises(DataError, match=said_of(path)):
        numbers(dataset.train)


def test_a_replaced_photo_of_which_parts_are_read_ends_the_run(photos):
    config = _config(photos, "none", crop="random_resized")
    train = data.open_dataset(config).train
    seeds = np.arange(COUNT, dtype=np.uint64)
    for _ in range(2):
        parts = train.read(np.arange(COUNT), seeds)
        assert sorted(map(number, parts)) == list(range(COUNT))
    replaced(photos / "train/a/06.bmp", 200)
    with pytest.raises(DataError, match=said_of(photos / "train/a/06.bmp")):
        train.read(np.arange(COUNT), seeds)


def test_a_photo_that_is_written_while_it_is_read_ends_the_run(photos, monkeypatch):
    dataset = data.open_dataset(_config(photos, "none"))
    path = photos / "train/a/06.bmp"
    original, other = path.read_bytes(), (photos / "train/b/07.bmp").read_bytes()
    whole_read = os.read

    def read_then_written(descriptor: int, size: int) -> bytes:
        if os.fstat(descriptor).st_ino == path.stat().st_ino:
            path.write_bytes(other)
        return whole_read(descriptor, size)

    assert len(other) == len(original)
    monkeypatch.setattr(os, "read", read_then_written)
    with pytest.raises(DataError, match=said_of(path)):
        numbers(dataset.train)
