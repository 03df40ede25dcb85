import dataclasses
import time

import numpy as np
import pytest

from jaxtrain.config.schema import DataConfig, SyntheticConfig
from jaxtrain.data import open_dataset, open_split
from jaxtrain.data.synthetic import SyntheticSplit
from jaxtrain.errors import UsageError

TEN = tuple("0123456789")


def config(shape=(8, 6, 3), examples=100, eval_examples=40, **keys):
    synthetic = SyntheticConfig(image_shape=shape, examples=examples, eval_examples=eval_examples)
    return DataConfig(source="synthetic", synthetic=synthetic, **keys)


def test_open_dataset():
    dataset = open_dataset(config())
    assert (dataset.train.name, dataset.train.size) == ("train", 100)
    assert (dataset.eval.name, dataset.eval.size) == ("test", 40)
    assert dataset.train.image_shape == dataset.eval.image_shape == (8, 6, 3)
    assert dataset.class_names == tuple("0123456789")
    assert not dataset.train.random
    assert dataset.train.nbytes == 100 * 8 * 6 * 3
    assert dataset.train.images.dtype == np.uint8
    assert dataset.train.labels.dtype == np.int32


def test_class_counts():
    assert open_dataset(config(num_classes=3)).class_names == ("0", "1", "2")
    assert open_dataset(config(num_classes=1000)).num_classes == 1000
    dataset = open_dataset(config(class_names=("cat", "dog")))
    assert dataset.class_names == ("cat", "dog")
    assert set(dataset.train.labels.tolist()) == {0, 1}
    assert open_dataset(config(num_classes=1)).num_classes == 1


def test_there_are_two_splits():
    with pytest.raises(UsageError) as error:
        open_split(config(), "valid", TEN)
    assert str(error.value) == (
        "there is no split 'valid' in data.source=synthetic; its splits: train, test"
    )
    dataset = open_dataset(config(holdout=30))
    assert (dataset.train.size, dataset.eval.size) == (70, 30)


@pytest.mark.parametrize(
    "shape", [(5,), (1, 1, 1), (3, 5, 2), (33, 2, 3), (7, 7, 4), (200, 190, 3)]
)
def test_an_image_is_a_function_of_split_and_index(shape):
    first, again = (open_dataset(config(shape, 50)).train for _ in range(2))
    images = first.images
    where = np.array([7, 49, 0, 7, 20])
    assert np.array_equal(again.read(where), images[where])
    assert np.array_equal(again.read(where[1:2])[0], images[49])
    longer = open_dataset(config(shape, 60)).train
    assert np.array_equal(longer.read(where), images[where])
    assert np.array_equal(longer.labels[:50], first.labels)
    assert first.read(where[:0]).shape == (0, *shape)


def test_images_differ_from_each_other_and_between_the_splits():
    dataset = open_dataset(config())
    both = [*dataset.train.images, *dataset.eval.images]
    assert len({image.tobytes() for image in both}) == 140


@pytest.mark.parametrize("features", [1, 13, 784])
def test_features_tell_the_classes_apart(features):
    split = open_dataset(config((features,), 400, num_classes=3)).train
    values = split.images
    assert (values.dtype, values.shape) == (np.float32, (400, features))
    assert values.min() >= 0
    assert values.max() <= 1
    means = [values[split.labels == label].mean(0) for label in range(3)]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert np.abs(means[one] - means[other]).max() > 0.1


def test_golden_values():
    """Results on synthetic data can be compared between versions."""
    split = SyntheticSplit("train", 0, 100, (2, 2, 3), 10)
    assert split.labels[:12].tolist() == [4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 2, 3]
    assert split.read(np.array([3])).ravel().tolist() == [
        97,
        147,
        66,
        133,
        232,
        25,
        104,
        242,
        18,
        149,
        207,
        51,
    ]
    assert split.fingerprint == "225aff2c"


def test_fingerprints_are_of_the_recipe():
    def split(number=0, size=100, shape=(2, 2, 3), classes=10):
        return SyntheticSplit("train", number, size, shape, classes).fingerprint

    prints = [split(), split(1), split(0, 101), split(0, 100, (2, 3, 2)), split(classes=9)]
    assert len(set(prints)) == len(prints)
    assert split() == prints[0]


@pytest.mark.parametrize("classes", [1, 2, 10, 1000])
def test_labels_are_balanced_and_not_in_order(classes):
    labels = SyntheticSplit("train", 0, 5 * classes, (1, 1, 1), classes).labels
    assert np.bincount(labels, minlength=classes).tolist() == [5] * classes
    if classes > 2:
        assert len(set(labels[::classes].tolist())) > 1


@pytest.mark.parametrize(
    ("classes", "channels"), [(2, 1), (10, 1), (10, 3), (100, 3), (1000, 3), (10, 4)]
)
def test_the_class_can_be_told_from_the_image(classes, channels):
    split = SyntheticSplit("train", 0, 2 * classes, (32, 32, channels), classes)
    means = split.images.mean((1, 2))
    first, second = (
        means[part][np.argsort(split.labels[part])]
        for part in (slice(classes), slice(classes, None))
    )
    distance = np.linalg.norm(first[:, np.newaxis] - second[np.newaxis], axis=-1)
    assert (distance.argmin(0) == np.arange(classes)).mean() > 0.9


def test_pixels_fill_the_range():
    images = SyntheticSplit("train", 0, 100, (32, 32, 3), 10).images
    assert images.min() == 0
    assert images.max() == 255


def test_a_huge_set_takes_no_time_and_no_room():
    began = time.monotonic()
    split = open_split(config((224, 224, 3), 10**6), "train", TEN)
    assert split.fingerprint
    assert split.read(np.array([10**6 - 1])).shape == (1, 224, 224, 3)
    assert time.monotonic() - began < 5


def test_it_answers_to_the_names_of_any_config():
    named = dataclasses.replace(config(), train_split="train[:80%]", eval_split="validation")
    assert open_split(named, "train[:80%]", TEN).fingerprint == (
        open_split(config(), "train", TEN).fingerprint
    )
    assert open_split(named, "validation", TEN).fingerprint == (
        open_split(config(), "test", TEN).fingerprint
    )
