"""The model of a checkpoint, as the other verbs use it."""

import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import data_mesh

from jaxtrain import data, models, state
from jaxtrain.config import from_dict, variants
from jaxtrain.config.schema import DataConfig
from jaxtrain.errors import UsageError
from jaxtrain.normalise import Normalise
from jaxtrain.parallel.mesh import on_mesh, replicated
from jaxtrain.predictor import Restored, open_split
from jaxtrain.predictor.restored import apply

SHAPE = (5, 4, 3)


def restored(devices: int, dtype: str = "float32", shape: tuple[int, ...] = SHAPE) -> Restored:
    """An MLP of three classes, the same for every number of devices."""
    values = {"dtype": dtype, "mlp": {"hidden_sizes": (8,)}}
    config = from_dict({"train": {"steps": 1}, "model": values})
    model = models.build(config.model, 3)
    mesh = data_mesh(jax.devices()[:devices])
    variables = state.init_model(model, jnp.uint32(0), shape)
    return Restored(
        model=model,
        normalise=Normalise((0.5,), (0.25,)),
        variables=jax.device_put(variables, replicated(mesh)),
        weights=None,
        abstract=on_mesh(jax.eval_shape(lambda: variables), mesh),
        mesh=mesh,
        class_names=("a", "b", "c"),
        image_shape=shape,
        step=1,
        config=config,
        directory=None,
        replica=0,
        variants=variants(config),
    )


def images(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, *SHAPE), np.uint8)


@pytest.mark.parametrize("devices", [1, 2, 8])
@pytest.mark.parametrize("count", [1, 3, 16])
def test_logits_are_the_models_for_any_number_of_images(devices: int, count: int) -> None:
    predictor = restored(devices)
    found = predictor.logits(images(count))
    expected = apply(
        predictor.model, predictor.normalise, jax.device_get(predictor.variables), images(count)
    )
    assert found.shape == (count, 3)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_source_is_the_same_function_of_arrays_on_the_host() -> None:
    predictor = restored(8)
    source = predictor.source(None, lambda: images(2))
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(source.variables))
    logits = source.apply(source.variables, images(3))
    np.testing.assert_allclose(logits, predictor.logits(images(3)), rtol=1e-5, atol=1e-6)
    assert source.class_names == ("a", "b", "c")
    assert source.image_shape == SHAPE


def test_a_source_computes_in_the_dtype_that_a_format_needs() -> None:
    predictor = restored(1, "bfloat16")
    rounded = predictor.source(None, lambda: images(2))
    exact = predictor.source("float32", lambda: images(2))
    program = str(jax.make_jaxpr(rounded.apply)(rounded.variables, images(2)))
    assert "bf16" in program
    assert "bf16" not in str(jax.make_jaxpr(exact.apply)(exact.variables, images(2)))


@pytest.mark.parametrize("devices", [1, 8])
def test_features_stay_floats(devices: int) -> None:
    predictor = restored(devices, shape=(2,))
    features = np.array([[300.5, -2.25], [0.125, 1e6], [7, 8]], np.float32)
    found = predictor.logits(features)
    variables = jax.device_get(predictor.variables)
    expected = apply(predictor.model, predictor.normalise, variables, features)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    source = predictor.source(None, lambda: features)
    assert (source.input, source.dtype) == ("features", np.float32)
    assert restored(1).source(None, lambda: images(1)).input == "image"


def test_examples_of_another_kind_are_named(tmp_path: Path) -> None:
    labels = np.array([0, 1, 2])
    np.savez(tmp_path / "features.npz", x_test=np.zeros((3, 2)), y_test=labels)
    np.savez(tmp_path / "images.npz", x_test=np.zeros((3, 5, 4, 3), np.uint8), y_test=labels)
    config = DataConfig(source="arrays")

    def opened(shape: tuple[int, ...], name: str) -> data.Split:
        there = dataclasses.replace(config, path=str(tmp_path / name))
        return open_split(restored(1, shape=shape), there, "test")

    assert opened((2,), "features.npz").image_shape == (2,)
    assert opened((5, 6, 3), "images.npz").image_shape == (5, 6, 3)
    for shape, name, said in (
        (
            (3,),
            "features.npz",
            "split 'test' has examples of 2 features, but the model was trained ",
        ),
        (
            (2,),
            "images.npz",
            "split 'test' has images of 3 channels, but the model was trained on ",
        ),
        ((5, 4, 1), "images.npz", "has images of 3 channels, but the model was trained on images "),
        (SHAPE, "features.npz", "data.image_size is for images, but an example of split test is 2"),
    ):
        with pytest.raises(UsageError, match=re.escape(said)):
            opened(shape, name)
