"""What arrays are for, by the names that people give them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.data.arrays.names import PARTS, Pair, Part, Role, by_role
from jaxtrain.errors import UsageError

INPUTS = ["x", "image", "images", "data", "features"]
LABELS = ["y", "label", "labels", "target", "targets"]
MEDMNIST = ["images", "labels"]
SPLITS = {"train": ["train", "training"], "val": ["val", "valid", "validation", "dev"]}
SPLITS["test"] = ["test", "testing"]


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        (["x_train", "y_train", "x_test", "y_test"], {"train": 0, "test": 2}),
        (["X_train", "Y_train", "X_dev", "Y_dev"], {"train": 0, "val": 2}),
        (
            [f"{split}_{what}" for split in ("train", "val", "test") for what in MEDMNIST],
            {"train": 0, "val": 2, "test": 4},
        ),
        (["trainX", "trainy", "testX", "testy"], {"train": 0, "test": 2}),
        (["images", "labels"], {"train": 0}),
        (["X", "y"], {"train": 0}),
        (["data", "target"], {"train": 0}),
        (["data", "targets"], {"train": 0}),
        (["features", "labels"], {"train": 0}),
        (["data_test", "label_test"], {"test": 0}),
        (["train/x", "train/y"], {"train": 0}),
    ],
)
def test_names_of_real_files(names, pairs):
    for order in (names, names[::-1]):
        found = by_role(order, "here")
        assert found.pairs == {split: Pair(*names[at : at + 2]) for split, at in pairs.items()}
        assert list(found.pairs) == list(pairs)
        assert found.class_names is None
        assert found.unused == []


@given(
    role=st.sampled_from([*INPUTS, *LABELS]),
    split=st.sampled_from([None, *itertools.chain(*SPLITS.values())]),
    separator=st.sampled_from(["_", "-", ".", ""]),
    suffix=st.booleans(),
    change=st.sampled_from([str, str.upper, str.title, str.swapcase]),
)
def test_a_split_stands_before_or_behind_in_any_case(role, split, separator, suffix, change):
    words = [role, split] if suffix else [split, role]
    name = change(separator.join(filter(None, words)))
    wanted = next((key for key, words in SPLITS.items() if split in words), None)
    assert PARTS[name.casefold()] == Part(Role.INPUTS if role in INPUTS else Role.LABELS, wanted)


@given(st.text("abcdefgilmnrstvxy_", max_size=12))
def test_no_other_name_means_anything(name):
    """Those that do consist of one word for what they hold, and one for the split at most."""
    part = PARTS.get(name)
    left = name
    words = [*INPUTS, *LABELS, "img", "imgs", "feature", "input", "inputs"]
    words += ["class_names", "label_names", "target_names", *itertools.chain(*SPLITS.values())]
    for word in sorted(words, key=len, reverse=True):
        left = left.replace(word, "", 1)
    assert part is None or left.strip("_") == ""


def test_every_spelling_means_one_thing():
    assert all(PARTS[name].split is None for name in [*INPUTS, *LABELS])
    assert {part.split for part in PARTS.values()} == {None, "train", "val", "test"}
    assert all(name == name.casefold() for name in PARTS)


def test_class_names_and_what_is_not_used():
    found = by_role(["data", "target", "target_names", "DESCR", "x_test"], "here")
    assert found == ({"train": Pair("data", "target")}, "target_names", ["DESCR", "x_test"])


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["x_train", "train_images", "y_train"], "two arrays of images or features of split train"),
        (["x", "y", "labels"], "here has two arrays of labels, y and labels; remove or rename one"),
        (["X", "x", "y"], "two arrays of images or features, X and x;"),
        (["x_val", "y_val", "y_dev"], "two arrays of labels of split val, y_val and y_dev"),
        (["x", "y", "class_names", "label_names"], "two arrays of class names, class_names and"),
        (["x", "y", "x_test", "y_test"], "x and y of no split, beside x_test and y_test; name "),
        (["x_train"], "here has no labels for x_train: it holds x_train; name them x_train and y_"),
        (["x_train", "y_test"], "no labels for x_train: it holds x_train, y_test;"),
        (["arr_0", "arr_1"], "no pair of inputs and labels: it holds arr_0, arr_1; name them "),
        ([f"a{k}" for k in range(12)], "it holds a0, a1, a2, a3, a4, a5, a6, a7 and 4 more; name"),
        ([], "it holds nothing; name them"),
    ],
)
def test_what_is_missing_or_there_twice_is_said(names, said):
    with pytest.raises(UsageError) as raised:
        by_role(names, "here")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
