"""Folders of images: what is found, what is left out, and what the classes are called."""

import os
import unicodedata
from pathlib import Path

import pytest

from jaxtrain.data.own.folder import find_images
from jaxtrain.errors import UsageError


def fill(root: Path, *names: str) -> Path:
    """Empty files: nothing looks into them."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def labelled(root: Path, split: str = "train") -> dict[str, str]:
    listed = find_images(root).splits[split]
    return dict(zip(listed.paths, listed.labels, strict=True))


def test_a_folder_is_a_class_at_any_depth(tmp_path):
    fill(tmp_path, "cat/1.jpg", "cat/deep/er/2.png", "a dog/1.JPG")
    assert labelled(tmp_path) == {
        "a dog/1.JPG": "a dog",
        "cat/1.jpg": "cat",
        "cat/deep/er/2.png": "cat",
    }


def test_paths_are_sorted_whatever_the_file_system_says(tmp_path):
    fill(tmp_path, *(f"{name}/{number}.jpg" for name in "cab" for number in (2, 10, 1)))
    paths = find_images(tmp_path).splits["train"].paths
    assert paths == sorted(paths)
    assert len(paths) == 9


@pytest.mark.parametrize("suffix", ["jpg", "JPEG", "png", "webp", "bmp", "tif", "tiff", "gif"])
def test_every_kind_of_image_is_found(tmp_path, suffix):
    assert labelled(fill(tmp_path, f"a/1.{suffix}")) == {f"a/1.{suffix}": "a"}


def test_what_is_hidden_is_not_there(tmp_path):
    fill(tmp_path, "a/1.jpg", "a/.2.jpg", "a/.b/3.jpg", ".c/4.jpg", ".d.jpg")
    found = find_images(tmp_path)
    assert found.splits["train"].paths == ["a/1.jpg"]
    assert list(found.notes) == []


def test_other_files_are_counted_by_suffix(tmp_path):
    fill(tmp_path, "a/1.jpg", "a/x.txt", "a/b/y.TXT", "a/Makefile", "z.csv", "loose.png")
    assert list(find_images(tmp_path).notes) == [
        "left out: 1 .csv, 2 .txt, 1 without suffix, no images by their names",
        "left out: 1 images in no class's folder, but beside those folders",
    ]


def test_kinds_that_are_not_read_are_told_apart(tmp_path):
    fill(tmp_path, "a/1.jpg", "a/2.HEIC", "b/3.txt")
    assert list(find_images(tmp_path).notes)[-2:] == [
        "left out: 1 .txt, no images by their names",
        "left out: 1 .heic, which are not read; convert them to JPEG or PNG",
    ]


def test_an_empty_folder_is_no_class(tmp_path):
    fill(tmp_path, "a/1.jpg", "b/x.txt")
    (tmp_path / "c").mkdir()
    found = find_images(tmp_path)
    assert set(found.splits["train"].labels) == {"a"}
    assert "no class: b, c, without images" in found.notes


def test_links_are_followed_and_may_lead_round(tmp_path):
    fill(tmp_path / "elsewhere", "1.jpg")
    fill(tmp_path / "root", "a/2.jpg")
    (tmp_path / "root/b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root/a/3.jpg").symlink_to(tmp_path / "elsewhere/1.jpg")
    (tmp_path / "root/a/round").symlink_to(tmp_path / "root/a")
    assert labelled(tmp_path / "root") == {"a/2.jpg": "a", "a/3.jpg": "a", "b/1.jpg": "b"}


def test_accents_are_one_class_however_they_are_written(tmp_path):
    composed, decomposed = (unicodedata.normalize(form, "Äpfel") for form in ("NFC", "NFD"))
    fill(tmp_path, f"{composed}/1.jpg", f"{decomposed}/2.jpg", "Zebra/1.jpg")
    listed = find_images(tmp_path).splits["train"]
    assert set(listed.labels) == {composed, "Zebra"}
    assert len(listed.paths) == 3


def test_the_order_is_the_same_on_every_system(tmp_path):
    """macOS writes accents in two characters, which sort in another place."""
    roots = []
    for form in ("NFC", "NFD"):
        names = [unicodedata.normalize(form, name) for name in ("Äpfel/é.jpg", "Äpfel/f.jpg")]
        roots.append(fill(tmp_path / form, *names, "Zebra/1.jpg"))
    orders = [
        [unicodedata.normalize("NFC", path) for path in find_images(root).splits["train"].paths]
        for root in roots
    ]
    assert orders[0] == orders[1]


@pytest.mark.parametrize(
    ("folders", "splits"),
    [
        (["train", "val", "test"], ["train", "val", "test"]),
        (["Train", "VALID"], ["train", "val"]),
        (["training", "validation", "testing"], ["train", "val", "test"]),
        (["dev", "train"], ["train", "val"]),
        (["test", "train"], ["train", "test"]),
        (["train"], ["train"]),
        (["test", "val"], ["val", "test"]),
        (["test"], ["test"]),
    ],
)
def test_folders_of_splits(tmp_path, folders, splits):
    fill(tmp_path, *(f"{folder}/{name}/1.jpg" for folder in folders for name in "ab"))
    found = find_images(tmp_path)
    assert list(found.splits) == splits
    assert all(listed.labels == ["a", "b"] for listed in found.splits.values())


@pytest.mark.parametrize("folders", [["train", "bus", "car"], ["val", "x"]])
def test_folders_of_classes_that_look_like_splits(tmp_path, folders):
    fill(tmp_path, *(f"{folder}/1.jpg" for folder in folders))
    assert set(labelled(tmp_path).values()) == set(folders)


def test_what_lies_beside_splits_is_told(tmp_path):
    fill(tmp_path, "train/a/1.jpg", "val/a/1.jpg", "docs/a/1.jpg")
    found = find_images(tmp_path)
    assert list(found.splits) == ["train", "val"]
    assert "left out: docs beside the folders of splits" in found.notes


def test_a_split_without_classes_is_none(tmp_path):
    """As the test images of a competition, whose classes nobody is told."""
    fill(tmp_path, "train/a/1.jpg", "test/1.jpg", "test/2.jpg")
    found = find_images(tmp_path)
    assert list(found.splits) == ["train"]
    assert "left out: 2 images in no class's folder, but beside those folders" in found.notes


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["1.jpg", "2.jpg"], "has 2 images, but no folder for each class"),
        (["a/x.txt"], "has no images"),
        ([], "it has no folders"),
        (["train/a/1.jpg", "Train/a/1.jpg", "val/a/1.jpg"], "2 folders for the split train"),
    ],
)
def test_folders_that_cannot_be_used(tmp_path, names, said):
    fill(tmp_path, *names)
    with pytest.raises(UsageError, match=said):
        find_images(tmp_path)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="No such file or directory"):
        find_images(tmp_path / "gone")
    with pytest.raises(UsageError, match="Not a directory"):
        find_images(fill(tmp_path, "file") / "file")


@pytest.mark.parametrize("top", ["", "train"])
@pytest.mark.parametrize("mode", [0o444, 0o111])
def test_a_folder_that_may_not_be_searched_or_not_be_listed(open_place, locked, top, mode):
    """Where it may not be searched, its folders cannot be told from files."""
    fill(open_place, "train/a/1.jpg", "val/a/1.jpg")
    said = f"{open_place / top} cannot be read: Permission denied"
    with locked(open_place / top, mode), pytest.raises(UsageError, match=said):
        find_images(open_place)


def test_a_class_whose_name_is_no_text(tmp_path):
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)
    with open(folder + b"/1.jpg", "wb"):
        pass
    with pytest.raises(UsageError, match="is not UTF-8"):
        find_images(tmp_path)


def test_a_folder_of_training_is_a_split_beside_anything(tmp_path):
    """Where it holds folders and no images, which that of a class may do too."""
    fill(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "other/x/1.jpg")
    found = find_images(tmp_path)
    assert list(found.splits) == ["train"]
    assert "left out: other beside the folders of splits" in found.notes


def test_links_that_lead_round_or_up_are_not_followed(tmp_path):
    """Eleven folders with links to each other have forty million ways through them."""
    for number in range(11):
        fill(tmp_path, f"a/{number}/{number}.jpg")
    for number in range(11):
        for other in set(range(11)) - {number}:
            (tmp_path / f"a/{number}/to{other}").symlink_to(tmp_path / f"a/{other}")
    fill(tmp_path, "b/1.jpg")
    (tmp_path / "b/up").symlink_to(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    assert labelled(tmp_path) == {
        **{f"a/{number}/{number}.jpg": "a" for number in range(11)},
        "b/1.jpg": "b",
    }


def test_a_folder_that_cannot_be_read(open_place, locked):
    fill(open_place / "photos", "train/a/1.jpg", "val/a/1.jpg")
    said = "val cannot be read: Permission denied"
    with locked(open_place / "photos/val", 0), pytest.raises(UsageError, match=said):
        find_images(open_place / "photos")
