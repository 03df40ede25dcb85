"""All examples read before training, from any source."""

import numpy as np
from image_files import write_half_jpeg, write_image

from jaxtrain import data
from jaxtrain.config.schema import DataConfig


def test_examples_that_are_there_more_than_once(tmp_path):
    for place, number in (
        ("train/a/1.png", 1),
        ("train/a/again.png", 1),
        ("train/a/2.png", 2),
        ("train/b/2.png", 2),
        ("train/b/3.png", 3),
        ("val/b/4.png", 4),
        ("val/a/3.png", 3),
    ):
        write_image(tmp_path / place, number)
    write_half_jpeg(tmp_path / "val/b/half.jpg")
    found = data.scan(DataConfig(source="folder", path=str(tmp_path)), data.silent)
    assert found.counts == {"train": 5, "val": 3}
    assert [(bad.split, bad.place) for bad in found.bad] == [
        ("val", str(tmp_path / "val/b/half.jpg"))
    ]
    assert [[(one.split, one.label) for one in group] for group in found.across] == [
        [("train", "b"), ("val", "a")]
    ]
    assert [[one.label for one in group] for group in found.contradicting] == [["a", "b"]]
    assert found.repeated == 1


def test_arrays_are_compared_by_their_values(idx_folder, toy):
    toy["t10k-images-idx3-ubyte"][3] = toy["train-images-idx3-ubyte"][7]
    toy["train-images-idx3-ubyte"][1] = toy["train-images-idx3-ubyte"][0]
    found = data.scan(DataConfig(source="idx", path=idx_folder(toy)), data.silent)
    assert found.counts == {"train": 20, "test": 10}
    assert found.bad == ()
    assert [[one.place for one in group] for group in found.across] == [["train[7]", "test[3]"]]
    assert [[one.place for one in group] for group in found.contradicting] == [
        ["train[0]", "train[1]"]
    ]


def test_progress_reaches_the_end(idx_folder, toy):
    told = []
    config = DataConfig(source="idx", path=idx_folder(toy))
    data.scan(config, lambda what, done, total: told.append((done, total)))
    assert (20, 20) in told
    assert told[-1] == (10, 10)
    assert np.all(np.diff([done for done, total in told if total == 20]) > 0)


def test_of_a_holdout_the_split_is_read_that_it_is_cut_from(idx_folder, toy):
    config = DataConfig(source="idx", path=idx_folder(toy), holdout=5, eval_split="gone")
    assert data.scan(config, data.silent).counts == {"train": 20}


def test_files_that_are_not_there_are_listed_among_the_others(tmp_path):
    write_image(tmp_path / "train/a/1.png", 1)
    write_image(tmp_path / "val/b/2.png", 2)
    (tmp_path / "train/a/gone.png").symlink_to(tmp_path / "nowhere.png")
    write_half_jpeg(tmp_path / "val/b/half.jpg")
    found = data.scan(DataConfig(source="folder", path=str(tmp_path)), data.silent)
    assert found.counts == {"train": 2, "val": 2}
    assert [(bad.split, bad.place) for bad in found.bad] == [
        ("train", str(tmp_path / "train/a/gone.png")),
        ("val", str(tmp_path / "val/b/half.jpg")),
    ]
