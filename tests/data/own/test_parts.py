"""Splits by name, with + between them."""

import pytest

from jaxtrain.data.own.parts import no_split, parts_of, parts_there


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("train", ["train"]),
        ("train+val", ["train", "val"]),
        (" val + train ", ["val", "train"]),
        ("val+train+val", ["val", "train"]),
        ("train+", ["train", ""]),
    ],
)
def test_each_part_is_there_once_and_in_order(name, parts):
    assert parts_of(name) == parts


def said(part: str, there: dict[str, int]) -> str:
    return str(no_split(part, there, place="photos", what="images", val_share=0.25))


def test_a_split_that_is_not_there():
    assert said("extra", {"train": 1234, "val": 2}) == (
        "there is no split 'extra' in photos; its splits: train (1,234 images), val (2 images), "
        "and some of them together as in train+val"
    )


def test_too_few_to_cut_is_said_where_that_is_why_there_is_no_val():
    assert said("val", {"train": 3}) == (
        "there is no split 'val' in photos; its splits: train (3 images), too few to cut "
        "data.val_share=0.25 from; raise it, or give more images; train+val is all of them"
    )
    others = (("val", {"train": 3, "test": 1}), ("val", {"test": 1}), ("x", {"train": 3}))
    for part, there in others:
        assert said(part, there).endswith("and some of them together as in train+val")


def test_train_and_val_are_all_where_there_was_too_little_to_cut():
    for name in ("train+val", "val+train"):
        assert parts_there(name, ["train"]) == ["train"]
    others = (("val", ["train"]), ("train+val", ["train", "test"]), ("val+x", ["train"]))
    for name, there in others:
        assert parts_there(name, there) == parts_of(name)
