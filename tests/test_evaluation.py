import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import IMAGE_SHAPE, data_mesh, split

from jaxtrain import models, state
from jaxtrain.config.schema import DataConfig, MlpConfig, ModelConfig
from jaxtrain.data import ArraySplit
from jaxtrain.errors import NonFiniteError
from jaxtrain.evaluation import Evaluator
from jaxtrain.parallel.mesh import on_mesh
from jaxtrain.step import Normalise
from jaxtrain.tasks import CLASSIFICATION


def evaluate(examples, batch_size, devices, *, dtype="float32", cache="device", scale=1.0):
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
    )
    ticks = []
    placed = jax.device_put(variables, jax.NamedSharding(mesh, jax.P()))
    results = evaluator.results(placed, lambda done, total: ticks.append((done, total)))
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
