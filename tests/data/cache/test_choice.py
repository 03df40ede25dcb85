"""Image files through all caches: the same batches, whatever was kept."""

import errno
import os
import shutil
import time

import numpy as np
import pytest
from PIL import Image

from jaxtrain.config.schema import DataConfig
from jaxtrain.data import Sampler, crops, list_inputs, load, open_dataset, resize, silent
from jaxtrain.data import decode as decoding
from jaxtrain.data.cache import disk
from jaxtrain.data.decode import decode
from jaxtrain.errors import DataError

COUNT = 12
KEPT = ("none", "memory", "disk", "auto")


def photo(path, number, size=(60, 90), **options):
    random = np.random.RandomState(number)
    small = Image.fromarray(random.randint(0, 256, (5, 6, 3)).astype(np.uint8))
    small.resize(size[::-1], Image.Resampling.BICUBIC).save(path, "JPEG", **options)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "_CHUNK", 4)
    for split in ("train", "val"):
        for number in range(COUNT):
            below = tmp_path / "data" / split / "ab"[number % 2]
            below.mkdir(parents=True, exist_ok=True)
            size = (60 + 7 * number, 90 - 3 * number)
            options = {"progressive": number == 3, "subsampling": number % 3}
            if number == 5:
                exif = Image.Exif()
                exif[0x0112] = 6
                options["exif"] = exif
            photo(below / f"{number}.jpg", number, size, **options)
    return tmp_path / "data"


def opened(folder, kept, **keys):
    config = DataConfig(
        source="folder",
        path=str(folder),
        cache=kept,
        cache_path=str(folder.parent / "cache"),
        **{"image_size": (24,), "crop": "random_resized", **keys},
    )
    return open_dataset(config)


def batches(split, count=9):
    sampler = Sampler(split.size, 4, 3)
    return np.stack(
        [batch.image for batch in load(split, sampler.batches(count), threads=2, ahead=2)]
    )


@pytest.mark.parametrize("crop", ["center", "random_resized"])
def test_batches_are_the_same_for_all_caches(folder, crop):
    expected = None
    for kept in KEPT:
        dataset = opened(folder, kept, crop=crop)
        for prepared in (False, True):
            if prepared:
                dataset.prepare(silent)
            found = batches(dataset.train), dataset.eval.images
            expected = found if expected is None else expected
            assert np.array_equal(found[0], expected[0]), (kept, prepared)
            assert np.array_equal(found[1], expected[1]), (kept, prepared)


@pytest.mark.parametrize("kept", KEPT)
def test_augmentation_is_not_frozen(folder, kept):
    dataset = opened(folder, kept)
    dataset.prepare(silent)
    epochs = batches(dataset.train, 9).reshape(3, COUNT, 24, 24, 3)
    assert len(np.unique(epochs.reshape(3 * COUNT, -1), axis=0)) == 3 * COUNT


def test_a_changed_file_is_seen(folder):
    dataset = opened(folder, "disk", crop="center")
    dataset.prepare(silent)
    before = dataset.train.images.copy()
    victim = folder / "train" / "a" / "4.jpg"
    status = victim.stat()
    photo(victim, 77, (60 + 28, 90 - 12), subsampling=1)
    os.utime(victim, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    again = opened(folder, "disk", crop="center")
    again.prepare(silent)
    changed = (again.train.images != before).any((1, 2, 3))
    assert changed.sum() == 1
    expected = crops.center(decode(victim.read_bytes(), 3), (24, 24), 1.0)
    assert np.array_equal(again.train.images[changed][0], expected)


def refused(*args, **keys):
    raise PermissionError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("meanwhile", [False, True])
@pytest.mark.parametrize("whose", ["own", "another user's"])
def test_what_a_run_is_going_to_use_is_not_removed(folder, monkeypatch, whose, meanwhile):
    """The images of both its splits, though they were not used for long."""
    opened(folder, "disk").prepare(silent)
    there = sorted((folder.parent / "cache").iterdir())
    month = time.time() - 31 * 86_400
    for path in there:
        os.utime(path, (month, month))
    if whose != "own":
        monkeypatch.setattr(os, "utime", refused)
    said = []
    dataset = opened(folder, "disk")
    if meanwhile:  # another run begins
        opened(folder, "disk", image_size=(20,)).prepare(silent)
    dataset.prepare(lambda *args: said.append(args))
    assert said == []  # nothing is made
    assert set(there) <= set((folder.parent / "cache").iterdir())
    recent = [path.stat().st_mtime > month + 86_400 for path in there]
    assert recent == [whose == "own"] * len(there)


@pytest.mark.parametrize("crop", ["center", "random_resized"])
@pytest.mark.parametrize("what", ["decoder", "resizer"])
def test_images_of_another_decoder_or_resizer_are_not_used(folder, monkeypatch, crop, what):
    def kept():
        opened(folder, "disk", crop=crop).prepare(silent)
        return {path.name for path in (folder.parent / "cache").iterdir()}

    before = kept()
    assert kept() == before
    if what == "decoder":
        monkeypatch.setattr(decoding, "DECODER", "Pillow 0, simplejpeg 0")
    else:
        monkeypatch.setattr(resize, "NAME", "another resizer 0")
    # Random parts are resized after they are read; the middles of `val` before.
    again = 1 if (what, crop) == ("resizer", "random_resized") else 2
    assert len(kept()) == len(before) * (1 + again / 2)


def test_folders_that_differ_in_content_alone_share_no_images(tmp_path):
    def written(name, number):
        """A folder whose files have the same names, sizes and times for all numbers."""
        for index in range(COUNT):
            path = tmp_path / name / "train" / "ab"[index % 2] / f"{index}.bmp"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((24, 24, 3), number + index, np.uint8)).save(path)
            os.utime(path, (1e9, 1e9))
        return tmp_path / name

    def images(folder):
        dataset = opened(folder, "disk", crop="center", eval_split="train")
        dataset.prepare(silent)
        return dataset.train.images

    def kept():
        return sorted(path.name for path in (tmp_path / "cache").iterdir())

    first, second = written("first", 0), written("second", 100)
    before = images(first)
    of_first = kept()
    assert np.array_equal(images(second), before + 100)
    assert np.array_equal(images(first), before)
    of_both = kept()
    assert len(of_both) == 2 * len(of_first)
    shutil.copytree(first, tmp_path / "copy")
    assert np.array_equal(images(tmp_path / "copy"), before)
    assert kept() == of_both  # a copy is the same


def test_only_what_was_decoded_as_a_whole_is_decoded_in_part(folder, monkeypatch):
    split = opened(folder, "none").train
    every, seeds = np.arange(COUNT), np.arange(3 * COUNT, dtype=np.uint64).reshape(3, COUNT)
    kept = opened(folder, "memory").train
    whole, parts = [], []
    decode_whole, decode_part = split._raw.decode, split._raw.decode_part
    monkeypatch.setattr(split._raw, "decode", lambda i, e: whole.append(i) or decode_whole(i, e))
    monkeypatch.setattr(
        split._raw, "decode_part", lambda i, *a: parts.append(i) or decode_part(i, *a)
    )
    for step in range(3):
        assert np.array_equal(split.read(every, seeds[step]), kept.read(every, seeds[step]))
    assert whole == every.tolist()
    assert parts == 2 * whole


@pytest.mark.parametrize("kept", KEPT)
def test_a_half_file_is_refused(folder, kept):
    victim = folder / "train" / "b" / "7.jpg"
    content = victim.read_bytes()
    victim.write_bytes(content[: len(content) * 2 // 3])
    with pytest.raises(DataError, match=r"train/b/7\.jpg: the image is broken: "):
        # Opening for the disk reads a few, to tell the room that they need.
        batches(opened(folder, kept).train)


def test_large_photos_come_reduced_alike_in_evaluation_and_prediction(folder):
    large = folder / "val" / "a" / "0.jpg"
    photo(large, 0, (400, 600))
    whole = opened(folder, "none", crop="center").eval
    reduced = decode(large.read_bytes(), 3, enough=(48, 48))
    assert reduced.shape == (50, 75, 3)
    index = next(i for i in range(COUNT) if whole.file_of(i) == str(large))
    expected = crops.center(reduced, (24, 24), 1.0)
    assert np.array_equal(whole.read(np.array([index]))[0], expected)
    (batch,) = list_inputs([str(large)], None).batches(1, (24, 24, 3), 1.0, (0, 0, 0))
    assert np.array_equal(batch.images[0], expected)
