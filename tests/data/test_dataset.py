import dataclasses

import numpy as np
import pytest

from jaxtrain.config.schema import DataConfig
from jaxtrain.data import open_dataset, open_split
from jaxtrain.errors import UsageError

CLASSES = ("0", "1", "2")


@pytest.fixture
def folder(idx_folder, toy):
    """Writes the toy data set with changes and returns the config that reads it."""

    def write(changes=None, **keys):
        return DataConfig(source="idx", path=idx_folder(toy | (changes or {})), **keys)

    return write


def refusal(action, *arguments):
    with pytest.raises(UsageError) as error:
        action(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def labels(*values, dtype=np.uint8):
    """20 labels, 0 1 2 0 1 2 ..., the last ones replaced."""
    array = (np.arange(20) % 3).astype(dtype)
    array[len(array) - len(values) :] = values
    return {"train-labels-idx1-ubyte": array}


def test_open_dataset(folder, toy):
    dataset = open_dataset(folder())
    assert (dataset.train.name, dataset.eval.name) == ("train", "test")
    assert (dataset.train.size, dataset.eval.size) == (20, 10)
    assert dataset.train.image_shape == dataset.eval.image_shape == (4, 5, 1)
    assert np.array_equal(dataset.train.images[..., 0], toy["train-images-idx3-ubyte"])
    assert dataset.class_names == ("0", "1", "2")
    assert dataset.num_classes == 3


def test_splits_by_name(folder):
    dataset = open_dataset(folder(train_split="test", eval_split="train"))
    assert (dataset.train.name, dataset.train.size) == ("test", 10)
    assert (dataset.eval.name, dataset.eval.size) == ("train", 20)


def test_the_source_is_checked():
    assert "data.source='minst' is unknown" in refusal(open_dataset, DataConfig(source="minst"))
    for action in ((open_dataset,), (open_split, "test", 10)):
        said = refusal(action[0], DataConfig(name="cifar10"), *action[1:])
        assert "data.name='cifar10' is set, but data.source=mnist does not read it" in said


def test_classes_are_declared_or_inferred(folder):
    assert open_dataset(folder(num_classes=7)).class_names == tuple("0123456")
    assert open_dataset(folder(class_names=("a", "b", "c"))).class_names == ("a", "b", "c")


def test_mnist_knows_its_classes():
    said = refusal(open_dataset, DataConfig(num_classes=5))
    assert "data.num_classes=5 but data.source=mnist has 10 classes; set it to 10 or None" in said


def test_a_stray_label_does_not_make_classes(folder):
    config = folder(labels(255))
    said = refusal(open_dataset, config)
    assert said.startswith(f"{config.path}/train-labels-idx1-ubyte: ")
    assert "the largest label 255 (at index 19, 1 times) would make 256 classes" in said
    assert "only 4 have an example (class 3 has none); set data.num_classes" in said
    said = refusal(open_dataset, dataclasses.replace(config, num_classes=3))
    assert "label 255 at index 19 of split train is outside 0..2" in said
    assert open_dataset(dataclasses.replace(config, num_classes=256)).num_classes == 256


def test_no_label_0(folder):
    config = folder({"train-labels-idx1-ubyte": np.full(20, 1, np.uint8)})
    assert "(class 0 has none)" in refusal(open_dataset, config)


@pytest.mark.parametrize("keys", [{}, {"num_classes": 3}])
def test_negative_training_labels(folder, keys):
    config = folder(labels(-1, 0, -1, dtype=np.int8), **keys)
    said = refusal(open_dataset, config)
    assert said.startswith(
        f"{config.path}/train-labels-idx1-ubyte: label -1 at index 17 of split train is outside "
        "0..2, as are 2 of its 20 labels"
    )


def test_only_negative_labels(folder):
    config = folder({"train-labels-idx1-ubyte": np.full(20, -7, np.int8)})
    assert "label -7 at index 0" in refusal(open_dataset, config)


def test_evaluation_labels_must_be_among_the_training_classes(folder):
    config = folder({"t10k-labels-idx1-ubyte": np.array([0, 1, 2, 3, 0, 0, 9, 0, 0, 0], np.uint8)})
    said = refusal(open_dataset, config)
    assert said.startswith(
        f"{config.path}/t10k-labels-idx1-ubyte: label 3 at index 3 of split test"
    )
    assert "outside 0..2, as are 2 of its 10 labels" in said
    assert "data.num_classes or data.class_names" in said


def test_evaluation_may_lack_classes(folder):
    config = folder({"t10k-labels-idx1-ubyte": np.zeros(10, np.uint8)})
    assert open_dataset(config).num_classes == 3


def test_shapes_must_agree(folder):
    config = folder({"t10k-images-idx3-ubyte": np.zeros((10, 5, 4), np.uint8)})
    said = refusal(open_dataset, config)
    assert said == (
        "split test has images 5x4x1 but train 4x5x1; set data.image_size to bring both to one "
        "size, and give both as many channels"
    )


def test_holdout(folder, toy):
    dataset = open_dataset(folder(holdout=6))
    assert (dataset.train.name, dataset.train.size) == ("train", 14)
    assert (dataset.eval.name, dataset.eval.size) == ("holdout", 6)
    both = np.concatenate([dataset.train.images, dataset.eval.images])[..., 0]
    whole = toy["train-images-idx3-ubyte"]
    assert sorted(map(bytes, both)) == sorted(map(bytes, whole))
    for split in (dataset.train, dataset.eval):
        where = [
            next(i for i in range(20) if np.array_equal(whole[i], x[..., 0])) for x in split.images
        ]
        assert where == sorted(where)
        assert split.labels.tolist() == [i % 3 for i in where]
    assert dataset.train.fingerprint != dataset.eval.fingerprint


def test_the_evaluation_split_is_not_needed_beside_a_holdout(folder):
    assert open_dataset(folder(holdout=6, eval_split="gone")).eval.size == 6


@pytest.mark.parametrize("count", [20, 21])
def test_a_holdout_must_leave_examples(folder, count):
    said = refusal(open_dataset, folder(holdout=count))
    assert f"data.holdout={count} leaves nothing of the 20 examples of split train" in said
    assert "below 20" in said


def test_open_split_is_the_split_of_the_run(folder):
    config = folder(holdout=6)
    dataset = open_dataset(config)
    for name, same in (("train", dataset.train), ("holdout", dataset.eval)):
        split = open_split(config, name, CLASSES)
        assert (split.name, split.size) == (name, same.size)
        assert split.fingerprint == same.fingerprint
    assert open_split(config, "t10k", CLASSES).name == "test"
    assert open_split(folder(), "train", CLASSES).size == 20


def test_open_split_needs_no_other_split(folder):
    config = folder({"train-images-idx3-ubyte": b"broken", "train-labels-idx1-ubyte": b"broken"})
    assert open_split(config, "test", CLASSES).size == 10


def test_open_split_checks_labels(folder):
    assert "label 2 at index 2 of split test is outside 0..1" in refusal(
        open_split, folder(), "test", CLASSES[:2]
    )


@pytest.mark.parametrize(
    ("names", "classes", "said"),
    [
        (
            ("cat", "dog", "owl"),
            CLASSES,
            "class 0 of data.source=idx is 'cat', but the model's is '0'",
        ),
        (("0", "2", "1"), CLASSES, "class 1 of data.source=idx is '2', but the model's is '1'"),
        (
            ("0", "1", "2"),
            CLASSES[:2],
            "class 2 of data.source=idx is '2', but the model's is missing",
        ),
    ],
)
def test_open_split_refuses_other_classes(folder, names, classes, said):
    assert said in refusal(open_split, folder(class_names=names), "test", classes)
    assert open_split(folder(class_names=names), "test", names).size == 10


def test_open_split_lists_what_is_there(folder):
    assert refusal(open_split, folder(), "valid", CLASSES).endswith("its splits: train, test")
    said = refusal(open_split, folder(), "holdout", CLASSES)
    assert said == "there is no split 'holdout' without data.holdout; splits there: train, test"


RANDOM = "random_resized(0.5)"


def test_both_splits_are_brought_to_one_size(folder):
    config = folder({"t10k-images-idx3-ubyte": np.zeros((10, 7, 9), np.uint8)}, image_size=(6,))
    dataset = open_dataset(config)
    assert dataset.train.image_shape == dataset.eval.image_shape == (6, 6, 1)
    assert open_split(config, "test", CLASSES).image_shape == (6, 6, 1)


def test_channels_must_agree_in_any_case(folder):
    config = folder({"t10k-images-idx3-ubyte": np.zeros((10, 4, 5, 3), np.uint8)}, image_size=(6,))
    said = refusal(open_dataset, config)
    assert said.startswith("split test has images 6x6x3 but train 6x6x1; ")
    assert said.endswith("give both as many channels")


@pytest.mark.parametrize("holdout", [None, 6])
def test_training_is_random_and_evaluation_is_not(folder, holdout):
    config = folder(crop=RANDOM, image_size=(3,), eval_crop=0.8, holdout=holdout)
    dataset = open_dataset(config)
    assert dataset.train.random
    assert not dataset.eval.random
    assert dataset.train.size == (14 if holdout else 20)
    seeds = np.arange(2, dtype=np.uint64)
    assert dataset.train.read(np.arange(2), seeds).shape == (2, 3, 3, 1)
    plain = open_dataset(dataclasses.replace(config, crop="center"))
    assert np.array_equal(dataset.eval.images, plain.eval.images)
    assert dataset.train.fingerprint != plain.train.fingerprint
    assert dataset.eval.fingerprint == plain.eval.fingerprint
    # The training split as it is evaluated on.
    split = open_split(config, "train", CLASSES)
    assert not split.random
    assert np.array_equal(split.images, plain.train.images)
    assert split.fingerprint == plain.train.fingerprint
    assert open_split(config, "test", CLASSES).size == 10


def test_random_parts_of_images_as_they_are(folder):
    dataset = open_dataset(folder(crop=RANDOM))
    assert dataset.train.image_shape == (4, 5, 1)
    assert dataset.train.random


def test_random_parts_cannot_stay_on_the_device(folder):
    config = folder(crop=RANDOM, cache="device")
    said = refusal(open_dataset, config)
    assert said == (
        "data.cache=device cannot hold data.crop=random_resized(0.5), another part of an image at "
        "each step; set data.cache=auto"
    )
    assert open_split(config, "test", CLASSES).size == 10
    assert open_dataset(folder(cache="device")).train.size == 20


def test_a_bad_crop_is_refused(folder):
    assert "data.crop='middle' is unknown" in refusal(open_dataset, folder(crop="middle"))
    assert "data.crop='middle' is unknown" in refusal(open_split, folder(crop="middle"), "test", 3)
