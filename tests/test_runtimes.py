import jax
import numpy as np
import pytest
from helpers import IMAGE_SHAPE, split

from jaxtrain.errors import NonFiniteError
from jaxtrain.evaluation import summary
from jaxtrain.runtimes import Difference, compare, flip_averaged, score
from jaxtrain.tasks import CLASSIFICATION


def fixed_logits(examples):
    """Random logits for each example, told by its image: an exported model of a test."""
    rng = np.random.default_rng(3)
    table = rng.normal(size=(examples.size, 10)).astype(np.float32)
    known = {image.tobytes(): row for image, row in zip(examples.images, table, strict=True)}
    sizes = []

    def logits(images):
        sizes.append(len(images))
        zero = np.zeros(10, np.float32)
        return np.stack([known.get(image.tobytes(), zero) for image in images])

    return logits, table, sizes


@pytest.mark.parametrize("batch_size", [1, 4, 7, 21, 64])
def test_scoring_another_runtime_counts_every_example_once(batch_size):
    examples = split(21)
    logits, table, sizes = fixed_logits(examples)
    ticks = []
    results = score(logits, CLASSIFICATION, examples, batch_size, lambda *tick: ticks.append(tick))
    assert ticks == [(k, len(ticks)) for k in range(1, len(ticks) + 1)]
    assert set(sizes) == {min(batch_size, 21)}, "compiled once"
    expected = jax.device_get(CLASSIFICATION.results(table, examples.labels))
    for name, values in expected.items():
        np.testing.assert_allclose(results[name], values, rtol=1e-6)
    metrics = summary(CLASSIFICATION, examples, results)
    assert metrics["count"] == 21
    assert metrics["accuracy"] == (table.argmax(1) == examples.labels).mean()


@pytest.mark.parametrize("batch", [1, 3, 300])
def test_two_models_are_compared_on_the_examples_that_are_named(batch):
    examples = split(21)
    _, table, _ = fixed_logits(examples)
    probabilities = np.asarray(jax.nn.softmax(table))
    number = {image.tobytes(): index for index, image in enumerate(examples.images)}
    seen = []

    def expected(images):
        return probabilities[[number[image.tobytes()] for image in images]]

    def actual(images):
        assert 1 <= len(images) <= batch
        rows = [number[image.tobytes()] for image in images]
        seen.extend(rows)
        changed = probabilities[rows].copy()
        for place, row in enumerate(rows):
            if row == 6:  # another class, by the largest difference
                changed[place] = np.roll(changed[place], 1)
            if row == 7:  # is not compared
                changed[place] = np.nan
        return changed

    indices = np.array([0, 2, 4, 6, 20])
    found = compare(expected, actual, examples, indices, batch=batch, tick=lambda *_: None)
    assert seen == indices.tolist()
    largest = np.abs(np.roll(probabilities[6], 1) - probabilities[6].astype(float)).max()
    assert found == Difference(batch, 5, pytest.approx(largest), 4)


def test_a_nan_is_the_largest_difference():
    examples = split(5)

    def some_nan(images):
        wrong = np.full((len(images), 10), 0.1, np.float32)
        wrong[:1] = np.nan
        return wrong

    def uniform(images):
        return np.full((len(images), 10), 0.1, np.float32)

    found = compare(uniform, some_nan, examples, np.arange(5), batch=3, tick=lambda *_: None)
    assert np.isnan(found.largest)
    with pytest.raises(NonFiniteError, match=r"the checkpoint's outputs are NaN .* --checkpoint"):
        compare(some_nan, uniform, examples, np.arange(5), batch=3, tick=lambda *_: None)


def test_flip_averaging_of_an_exported_model_is_that_of_a_checkpoint():
    weights = np.random.RandomState(0).normal(size=(np.prod(IMAGE_SHAPE), 10)).astype(np.float32)

    def logits(images):
        return images.reshape(len(images), -1).astype(np.float32) @ weights

    images = split(5).images
    expected = (logits(images) + logits(images[:, :, ::-1])) / 2
    np.testing.assert_array_equal(flip_averaged(logits)(images), expected)
    assert flip_averaged(logits)(images).dtype == np.float32
