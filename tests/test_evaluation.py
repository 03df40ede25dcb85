import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import IMAGE_SHAPE, data_mesh, split

from jaxtrain import models, state
from jaxtrain.config.schema import DataConfig, MlpConfig, ModelConfig
from jaxtrain.data import ArraySplit
from jaxtrain.errors import NonFiniteError, UsageError
from jaxtrain.evaluation import Evaluator, check_flip, summary
from jaxtrain.normalise import Normalise
from jaxtrain.parallel.mesh import on_mesh
from jaxtrain.runtimes import score
from jaxtrain.tasks import CLASSIFICATION, with_ranking


def evaluate(
    examples, batch_size, devices, *, dtype="float32", cache="device", scale=1.0, flip=False
):
    """Results and summary of a fixed model's pass."""
    model = models.build(ModelConfig(dtype=dtype, mlp=MlpConfig(hidden_sizes=(16,))), 10)
    mesh = data_mesh(jax.devices()[:devices])
    variables = state.init_model(model, jnp.uint32(0), IMAGE_SHAPE)
    variables = jax.tree.map(lambda x: x * scale, variables)
    evaluator = Evaluator(
        model=model,
        normalise=Normalise((0.0,), (1.0,)),
        task=CLASSIFICATION,
        split=examples,
        config=DataConfig(cache=cache),
        batch_size=batch_size,
        mesh=mesh,
        variables=on_mesh(jax.eval_shape(lambda: variables), mesh),
        flip_average=flip,
    )
    ticks = []
    placed = jax.device_put(variables, jax.NamedSharding(mesh, jax.P()))
    (results,) = evaluator.results(placed, lambda done, total: ticks.append((done, total)))
    assert [done for done, _ in ticks] == list(range(1, ticks[0][1] + 1))
    return evaluator, results


@pytest.mark.parametrize("size", [10, 21])
def test_every_batch_and_device_count_gives_the_same_numbers(size):
    examples = split(size)
    evaluator, reference = evaluate(examples, size, 1)
    expected = evaluator.summary(reference)
    assert expected["count"] == size
    for batch, devices in itertools.product((1, 3, 4, 8, 10, 16), (1, 2, 4, 8)):
        evaluator, results = evaluate(examples, batch, devices)
        found = evaluator.summary(results)
        assert found["count"] == size
        assert found["accuracy"] == expected["accuracy"]
        assert found["loss"] == pytest.approx(expected["loss"], abs=1e-7)
        np.testing.assert_array_equal(results["prediction"], reference["prediction"])


def test_host_memory_gives_the_same_results_bit_for_bit():
    for devices in (1, 8):
        _, kept = evaluate(split(21), 8, devices)
        _, read = evaluate(split(21), 8, devices, cache="memory")
        for name, values in kept.items():
            np.testing.assert_array_equal(values, read[name])


def test_results_are_those_of_the_formula():
    examples = split(13)
    _, results = evaluate(examples, 4, 2)
    model = models.build(ModelConfig(mlp=MlpConfig(hidden_sizes=(16,))), 10)
    variables = state.init_model(model, jnp.uint32(0), IMAGE_SHAPE)
    images = examples.images.astype(np.float32) / 255
    logits = np.asarray(model.apply(*variables.values(), images, row=jnp.arange(13), key=None)[0])
    exact = logits.astype(np.float64)
    log_z = np.log(np.exp(exact).sum(1))
    rows = np.arange(13)
    np.testing.assert_allclose(results["loss"], log_z - exact[rows, examples.labels], rtol=1e-5)
    np.testing.assert_array_equal(results["prediction"], logits.argmax(1))
    np.testing.assert_array_equal(results["correct"], logits.argmax(1) == examples.labels)
    np.testing.assert_allclose(results["probability"], np.exp(exact.max(1) - log_z), rtol=1e-5)


def test_bfloat16_counts_5000_correct_examples_exactly():
    images = np.repeat(split(1).images, 5000, axis=0)
    guess = evaluate(split(1), 1, 1, dtype="bfloat16")[1]["prediction"][0]
    examples = ArraySplit("test", images, np.full(5000, guess, np.int32), "memory")
    evaluator, results = evaluate(examples, 64, 8, dtype="bfloat16")
    assert evaluator.summary(results)["accuracy"] == 1.0
    assert evaluator.summary(results)["count"] == 5000


@pytest.mark.parametrize("scale", [np.nan, np.inf])
def test_outputs_that_are_not_finite_are_never_class_0(scale):
    evaluator, results = evaluate(split(21), 4, 2, scale=scale)
    with pytest.raises(NonFiniteError, match="21 of 21 examples of split 'test'") as caught:
        evaluator.summary(results)
    assert caught.value.status == 4


def test_a_huge_batch_is_cut_to_the_split():
    evaluator, results = evaluate(split(5), 10**9, 2)
    assert evaluator.summary(results)["count"] == 5


def test_a_checkpoint_and_its_own_logits_score_the_same():
    examples = split(13)
    evaluator, results = evaluate(examples, 4, 2)
    model = models.build(ModelConfig(mlp=MlpConfig(hidden_sizes=(16,))), 10)
    variables = state.init_model(model, jnp.uint32(0), IMAGE_SHAPE)

    def logits(images):
        scaled = images.astype(np.float32) / 255
        return model.apply(*variables.values(), scaled, row=jnp.arange(len(images)), key=None)[0]

    scored = score(logits, CLASSIFICATION, examples, 5, lambda *_: None)
    found = summary(CLASSIFICATION, examples, scored)
    expected = evaluator.summary(results)
    assert found["accuracy"] == expected["accuracy"]
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-7)


def test_ranking_names_the_most_probable_classes_first():
    logits = jnp.array([[1.0, 3.0, 2.0], [0.0, 0.0, -1.0], [200.0, 100.0, 201.0]])
    task = with_ranking(CLASSIFICATION, 2)
    results = jax.device_get(task.results(logits, jnp.array([1, 0, 0])))
    assert results["top"].tolist() == [[1, 2], [0, 1], [2, 0]], "of equals the first"
    assert results["top"].dtype == np.int32
    np.testing.assert_array_equal(results["top"][:, 0], results["prediction"])
    np.testing.assert_array_equal(results["top_probability"][:, 0], results["probability"])
    np.testing.assert_allclose(results["top_probability"][0], [0.66524, 0.24473], atol=1e-5)


def mirrored(examples):
    images = examples.images[:, :, ::-1]
    return ArraySplit(examples.name, images, examples.labels, examples.origin)


def test_flip_averaging_is_the_same_for_an_image_and_its_mirror_image():
    """And said in the summary; without it the two differ."""
    examples = split(9)
    evaluator, results = evaluate(examples, 4, 2, flip=True)
    _, of_mirrored = evaluate(mirrored(examples), 4, 2, flip=True)
    np.testing.assert_allclose(results["loss"], of_mirrored["loss"], rtol=1e-6)
    assert evaluator.summary(results)["flip_average"] is True
    plain, without = evaluate(examples, 4, 2)
    assert not np.allclose(results["loss"], without["loss"], rtol=1e-3)
    assert "flip_average" not in plain.summary(without)


def test_features_have_no_mirror_image():
    features = ArraySplit("test", np.zeros((3, 4), np.float32), np.zeros(3, np.int32), "memory")
    check_flip(features, flip_average=False)
    with pytest.raises(UsageError, match=r"eval.flip_average=True needs images, but examples are"):
        check_flip(features, flip_average=True)


@pytest.mark.parametrize("classes", [2, 5, 6, 11])
def test_top_5_is_told_where_there_are_more_classes(classes):
    random = np.random.RandomState(0)
    logits = random.randint(0, 3, (200, classes)).astype(np.float32)  # with many equal ones
    labels = random.randint(0, classes, 200).astype(np.int32)
    results = jax.device_get(CLASSIFICATION.results(jnp.asarray(logits), jnp.asarray(labels)))
    found = CLASSIFICATION.summary(results)
    if classes <= 5:
        assert "top5_accuracy" not in found
        return
    _, top = jax.lax.top_k(logits, 5)
    expected = (np.asarray(top) == labels[:, np.newaxis]).any(axis=1)
    np.testing.assert_array_equal(results["top5"], expected)
    assert found["top5_accuracy"] == expected.mean()
