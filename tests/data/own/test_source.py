"""Folders and lists as splits: classes, the cut, bad files, what is read."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from image_files import number, write_half_jpeg, write_image
from PIL import Image

from jaxtrain import data
from jaxtrain.config.schema import DataConfig
from jaxtrain.data.scan import scan
from jaxtrain.data.sources import open_source
from jaxtrain.data.split import silent
from jaxtrain.errors import DataError, UsageError

CLASSES = ("ant", "bee", "cow")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """120 images in three folders, each of which says which one it is."""
    for each in range(120):
        write_image(tmp_path / "photos" / CLASSES[each % 3] / f"{each}.png", each)
    return tmp_path / "photos"


def folder(path: Path, **keys: object) -> DataConfig:
    return DataConfig(source="folder", path=str(path), channels=1, **keys)  # type: ignore[arg-type]


def numbers(split: data.Split) -> list[int]:
    return [number(image) for image in split.images]


def test_images_and_labels_belong_together(photos):
    dataset = data.open_dataset(folder(photos, image_size=(4,)))
    assert dataset.class_names == CLASSES
    for split in (dataset.train, dataset.eval):
        assert [each % 3 for each in numbers(split)] == split.labels.tolist()
    assert sorted(numbers(dataset.train) + numbers(dataset.eval)) == list(range(120))
    assert 3 < dataset.eval.size < 25


def test_files_stay_in_their_split_when_others_come(photos):
    before = data.open_dataset(folder(photos, image_size=(4,)))
    trained, evaluated = set(numbers(before.train)), set(numbers(before.eval))
    for each in range(120, 240):
        write_image(photos / CLASSES[each % 3] / "new" / f"{each}.png", each)
    after = data.open_dataset(folder(photos, image_size=(4,)))
    assert trained < set(numbers(after.train))
    assert evaluated < set(numbers(after.eval))


def test_the_cut_is_the_same_in_another_place(photos, tmp_path):
    before = data.open_dataset(folder(photos, image_size=(4,)))
    shutil.copytree(photos, tmp_path / "elsewhere/copy")
    after = data.open_dataset(folder(tmp_path / "elsewhere/copy", image_size=(4,)))
    assert numbers(before.eval) == numbers(after.eval)
    assert before.train.fingerprint == after.train.fingerprint


@pytest.mark.parametrize("change", ["new", "gone", "content", "class"])
def test_the_fingerprint_tells_changes(photos, change):
    config = folder(photos, image_size=(4,), eval_split="train+val", train_split="train+val")
    before = data.open_dataset(config).train.fingerprint
    first = photos / "ant/0.png"
    if change == "new":
        write_image(photos / "ant/new.png", 1)
    elif change == "gone":
        first.unlink()
    elif change == "content":  # of the same size, at the same time
        status = first.stat()
        content = bytearray(first.read_bytes())
        content[-1] ^= 1
        first.write_bytes(content)
        os.utime(first, ns=(status.st_atime_ns, status.st_mtime_ns))
    else:
        first.rename(photos / "bee/0.png")
    assert data.open_dataset(config).train.fingerprint != before


def test_every_split_and_several_as_one(photos):
    both = data.open_split(folder(photos, image_size=(4,)), "train+val", CLASSES)
    assert sorted(numbers(both)) == list(range(120))
    for name in (" train ", "train + train"):
        train = data.open_split(folder(photos, image_size=(4,)), name, CLASSES)
        assert numbers(train) == numbers(data.open_dataset(folder(photos, image_size=(4,))).train)
    with pytest.raises(UsageError, match=r"no split 'test' in .*its splits: train \(\d+ images\)"):
        data.open_split(folder(photos, image_size=(4,)), "test", CLASSES)


def test_val_is_evaluated_on_unless_there_is_only_test(photos, tmp_path):
    assert data.open_dataset(folder(photos, image_size=(4,))).eval.name == "val"
    shutil.copytree(photos, tmp_path / "root/train")
    shutil.copytree(photos, tmp_path / "root/test")
    assert data.open_dataset(folder(tmp_path / "root", image_size=(4,))).eval.name == "test"
    assert data.open_split(folder(tmp_path / "root", image_size=(4,)), None, CLASSES).name == "test"


def test_classes_are_those_of_training(tmp_path):
    for split, name in (("train", "b"), ("train", "a"), ("train", "Z"), ("val", "b")):
        write_image(tmp_path / split / name / "1.png", 1)
    dataset = data.open_dataset(folder(tmp_path, image_size=(4,)))
    assert dataset.class_names == ("Z", "a", "b")
    assert dataset.eval.labels.tolist() == [2]
    assert "split val has no images of Z, a" in dataset.notes


def test_a_class_that_is_not_trained_is_refused(tmp_path):
    for split, name in (("train", "a"), ("val", "a"), ("val", "b")):
        write_image(tmp_path / split / name / "1.png", 1)
    with pytest.raises(UsageError, match=r"split val of .* has the class 'b' \(val/b/1.png\)"):
        data.open_dataset(folder(tmp_path, image_size=(4,)))


def test_class_names_set_the_order(photos):
    config = folder(photos, image_size=(4,), class_names=("cow", "dog", "ant", "bee"))
    dataset = data.open_dataset(config)
    assert dataset.class_names == ("cow", "dog", "ant", "bee")
    expected = {0: 2, 1: 3, 2: 0}
    assert [expected[each % 3] for each in numbers(dataset.train)] == dataset.train.labels.tolist()


def test_other_data_is_labelled_by_the_names_of_the_run(photos):
    """Whatever classes it has of its own."""
    shutil.rmtree(photos / "ant")
    split = data.open_split(folder(photos, image_size=(4,)), "train+val", CLASSES)
    assert set(split.labels.tolist()) == {1, 2}


def write_list(path: Path, rows: list[str]) -> DataConfig:
    path.write_text("path,label\n" + "\n".join(rows))
    return DataConfig(source="csv", path=str(path), channels=1, image_size=(4,))


def test_a_list_of_numbers(photos):
    rows = [f"photos/{CLASSES[each % 3]}/{each}.png,{each % 3}" for each in range(120)]
    dataset = data.open_dataset(write_list(photos.parent / "list.csv", rows))
    assert dataset.class_names == ("0", "1", "2")
    assert [each % 3 for each in numbers(dataset.train)] == dataset.train.labels.tolist()


def test_a_list_of_names_and_absolute_paths(photos):
    rows = [f"{photos}/{CLASSES[each % 3]}/{each}.png,{CLASSES[each % 3]}" for each in range(120)]
    dataset = data.open_dataset(write_list(photos / "list.csv", rows))
    assert dataset.class_names == CLASSES
    assert sorted(numbers(dataset.train) + numbers(dataset.eval)) == list(range(120))


@pytest.mark.parametrize("way", ["x/../photos", "link"])
def test_the_cut_does_not_depend_on_how_the_path_of_a_list_is_spelled(photos, way):
    (photos.parent / "x").mkdir()
    (photos.parent / "link").symlink_to("photos")
    rows = [f"{photos}/{CLASSES[each % 3]}/{each}.png,{each % 3}" for each in range(120)]
    config = write_list(photos / "list.csv", rows)
    dataset = data.open_dataset(config)
    path = str(photos.parent / way / "list.csv")
    again = data.open_dataset(DataConfig(**{**vars(config), "path": path}))
    assert numbers(again.eval) == numbers(dataset.eval)
    assert again.train.fingerprint == dataset.train.fingerprint


def test_missing_files_are_found_before_training(photos):
    config = write_list(photos / "list.csv", ["ant/0.png,a", "gone.png,b", "bee/gone.png,b"])
    with pytest.raises(UsageError, match=r"2 of the 3 files of split train cannot be read, first "):
        data.open_split(config, "train", ("a", "b"))


def test_too_few_to_cut(photos):
    config = write_list(photos / "list.csv", ["ant/0.png,a", "bee/1.png,b"])
    said = r"train \(2 images\), too few to cut data\.val_share=0\.1 from; raise it, or give more "
    with pytest.raises(UsageError, match=said):
        data.open_dataset(config)
    with pytest.raises(UsageError, match=said):
        data.open_split(config, "val", ("a", "b"))


@pytest.mark.parametrize("kind", ["csv", "folder"])
def test_all_of_too_few_to_cut(photos, kind):
    """As to evaluate a model on another folder."""
    config = write_list(photos / "list.csv", ["ant/0.png,a", "bee/1.png,b"])
    if kind == "folder":
        for name, each in (("a", 0), ("b", 1)):
            write_image(photos.parent / "few" / name / "x.png", each)
        config = folder(photos.parent / "few", image_size=(4,))
    split = data.open_split(config, "train+val", ("a", "b"))
    assert split.name == "train+val"
    assert numbers(split) == [0, 1]


@pytest.mark.parametrize("class_names", [None, ("x", "y")])
def test_numbers_of_classes_start_at_0(photos, class_names):
    rows = [f"{CLASSES[each % 3]}/{each}.png,{each % 2 * 2 - 1}" for each in range(60)]
    config = write_list(photos / "list.csv", rows)
    config = DataConfig(**{**vars(config), "class_names": class_names})
    said = r"list\.csv: the label -1 of ant/0\.png is no class number, as class numbers start at 0"
    with pytest.raises(UsageError, match=said):
        data.open_dataset(config)
    too_large = write_list(photos / "large.csv", ["ant/0.png,0", f"bee/1.png,{2**31}"])
    with pytest.raises(UsageError, match=r"of bee/1\.png .* class numbers end at 2,147,483,647; "):
        data.open_dataset(too_large)
    names = DataConfig(**{**vars(config), "class_names": ("-1", "1")})
    assert data.open_dataset(names).train.labels.min() == 0


@pytest.mark.parametrize("source", ["folder", "csv", "arrays", "idx"])
@pytest.mark.parametrize("path", ["gs://a/b", "http://x.org/a"])
def test_data_on_no_local_disk(source, path):
    with pytest.raises(UsageError) as error:
        data.open_dataset(DataConfig(source=source, path=path))
    expected = f"data.path={path} is not local; copy it to a local disk first"
    assert str(error.value) == expected


@pytest.mark.parametrize("bad", ["empty", "half", "text", "missing"])
def test_bad_files(photos, bad):
    rows = [f"{CLASSES[each % 3]}/{each}.png,{each % 3}" for each in range(60)]
    config = write_list(photos / "list.csv", [*rows, "bad.jpg,1"])
    if bad == "half":
        write_half_jpeg(photos / "bad.jpg")
    elif bad != "missing":
        (photos / "bad.jpg").write_bytes(b"text" if bad == "text" else b"")
    if bad == "missing":
        with pytest.raises(UsageError, match=r"1 of the 61 files of split train\+val cannot be"):
            data.open_split(config, "train+val", ("0", "1", "2"))
    else:
        split = data.open_split(config, "train+val", ("0", "1", "2"))
        files = [split.file_of(index) for index in range(61)]
        index = files.index(str(photos / "bad.jpg"))
        with pytest.raises(DataError, match=r"bad.jpg: the image .*data.on_bad_file=skip"):
            split.read(np.array([index]))
    skipping = DataConfig(**{**vars(config), "on_bad_file": "skip"})
    split = data.open_split(skipping, "train+val", ("0", "1", "2"))
    assert split.size == 60
    assert sorted(numbers(split)) == list(range(60))
    assert [each.file for each in split.left_out] == [str(photos / "bad.jpg")]


def test_bad_files_are_left_out_of_the_training_part_alone(photos):
    write_half_jpeg(photos / CLASSES[0] / "half.jpg")
    config = folder(photos, image_size=(4,), on_bad_file="skip", holdout=5)
    listed = [str(photos / CLASSES[0] / "half.jpg")]
    dataset = data.open_dataset(config)
    assert {name: list(files) for name, files in dataset.left_out.items()} == {"train": listed}
    assert not dataset.eval.left_out
    for name, expected in (("train", listed), ("holdout", [])):
        left_out = data.open_split(config, name, dataset.class_names).left_out
        assert [each.file for each in left_out] == expected


def test_a_split_of_bad_files_alone(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.jpg").touch()
    with pytest.raises(UsageError, match="none of the 2 files of split train can be dec"):
        data.open_dataset(folder(tmp_path, image_size=(4,), on_bad_file="skip"))


def test_a_split_of_one_bad_file_that_is_listed_twice(photos):
    """The rows of a list count, not the files that they name."""
    write_half_jpeg(photos / "bad.jpg")
    rows = [f"{CLASSES[each % 2]}/{each}.png,{each % 2},train" for each in (0, 1)]
    config = write_list(photos / "list.csv", rows)
    (photos / "list.csv").write_text(
        "path,label,split\n" + "\n".join([*rows, *["bad.jpg,1,val"] * 2])
    )
    skipping = DataConfig(**{**vars(config), "on_bad_file": "skip"})
    with pytest.raises(UsageError, match=r"none of the 2 files of split val can be decoded, first"):
        data.open_dataset(skipping)
    whole = data.open_split(skipping, "train+val", ("0", "1"))
    assert (whole.size, len(whole.left_out)) == (2, 2)
    both = DataConfig(**{**vars(skipping), "train_split": "train+val", "eval_split": "train"})
    dataset = data.open_dataset(both)
    bad = str(photos / "bad.jpg")
    assert any(note.startswith("left out of train+val: 2 that cannot") for note in dataset.notes)
    assert {name: list(files) for name, files in dataset.left_out.items()} == {"train+val": [bad]}
    (photos / "bad.jpg").unlink()
    with pytest.raises(UsageError, match=r"2 of the 2 files of split val cannot be read, first"):
        data.open_dataset(config)


def test_a_scan_changes_nothing_for_training(photos):
    """A file that cannot be decoded still ends a run where it is read, not before."""
    write_half_jpeg(photos / CLASSES[0] / "half.jpg")
    config = folder(photos, image_size=(4,))
    before = data.open_dataset(config).train
    for _ in range(2):
        assert [Path(bad.place).name for bad in scan(config, silent).bad] == ["half.jpg"]
        after = data.open_dataset(config).train
        assert (after.size, after.fingerprint) == (before.size, before.fingerprint)
    with pytest.raises(DataError, match=r"half\.jpg"):
        after.read(np.arange(after.size))


def test_decoding_is_told_and_not_done_twice(photos):
    told = []

    def progress(what: str, done: int, total: int) -> None:
        told.append((what, done, total))

    config = folder(photos, image_size=(4,), on_bad_file="skip")
    data.open_dataset(config, progress)
    assert ("decode", told[-1][2], told[-1][2]) in told
    assert (photos / ".jaxtrain-files.npz").exists()
    for path in photos.rglob("*.png"):
        path.chmod(0o000)
    assert not data.open_dataset(config).train.left_out


def test_what_is_kept_of_a_folder_does_not_grow_by_files_that_are_gone(photos):
    config = folder(photos, image_size=(4,))
    index = photos / ".jaxtrain-files.npz"
    data.open_dataset(config)
    before = index.stat().st_size
    for each in range(120):
        (photos / CLASSES[each % 3] / f"{each}.png").rename(
            photos / CLASSES[each % 3] / f"{each + 120}.png"
        )
    data.open_dataset(config)
    assert index.stat().st_size < 1.2 * before


def test_transparent_images_lie_on_the_background(tmp_path):
    for name in ("a", "b"):
        image = np.zeros((4, 4, 4), np.uint8)
        (tmp_path / name).mkdir()
        Image.fromarray(image).save(tmp_path / name / "1.png")
    for background, expected in (((0,), 0), ((255,), 255), ((1, 2, 3), None)):
        config = DataConfig(
            source="folder", path=str(tmp_path), image_size=(4,), background=background
        )
        split = data.open_split(config, "train", ("a", "b"))
        pixel = split.images[0, 0, 0].tolist()
        assert pixel == ([1, 2, 3] if expected is None else [expected] * 3)


def test_keys_that_a_source_does_not_read(photos):
    with pytest.raises(UsageError, match=r"data.val_share=0.2 is set, but data.source=mnist"):
        open_source(DataConfig(val_share=0.2), silent)
    with pytest.raises(UsageError, match=r"data\.source=folder needs data.path"):
        open_source(DataConfig(source="folder"), silent)


@pytest.mark.parametrize("start", [0, 1, 7])
def test_batches_hold_the_images_that_the_sampler_says(photos, start):
    """From any step on, read by several threads: images that say which one they are."""
    split = data.open_dataset(folder(photos, image_size=(4,))).train
    expected = np.array(numbers(split))
    batches = data.Sampler(split.size, 16, seed=3).batches(12)
    read = list(data.load(split, batches, start=start, threads=3, ahead=4))
    assert len(read) == 12 - start
    for item, batch in enumerate(read, start=start):
        indices = batches[item]
        assert batch.image[:, 0, 0, 0].tolist() == expected[indices].tolist()
        assert batch.label.tolist() == (expected[indices] % 3).tolist()
