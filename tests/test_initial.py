"""Weights to start from: those of another run, by their names."""

import dataclasses

import jax
import numpy as np
import pytest
from helpers import IMAGE_SHAPE, data_mesh

from jaxtrain import checkpoint, initial, models, provenance, state
from jaxtrain.config import Config
from jaxtrain.config.schema import MlpConfig, ModelConfig, OptimizerConfig, TrainConfig
from jaxtrain.errors import UsageError
from jaxtrain.optimizer import build

MLP = ModelConfig(mlp=MlpConfig(hidden_sizes=(6,)))


def variables(classes: int, config: ModelConfig = MLP) -> dict:
    return state.abstract_model(models.build(config, classes), IMAGE_SHAPE, classes)


@pytest.fixture(scope="module", params=[None, 0.9])
def saved(request, tmp_path_factory):
    """A run's folder with a checkpoint of 3 classes at step 0, and its state."""
    config = dataclasses.replace(
        Config(), model=MLP, train=TrainConfig(epochs=1, ema_decay=request.param)
    )
    model = models.build(MLP, 3)
    params = variables(3)["params"]
    first = state.create(
        model,
        build(OptimizerConfig(), params),
        np.uint32(7),
        IMAGE_SHAPE,
        averages=request.param is not None,
    )
    if first.ema is not None:
        first = dataclasses.replace(first, ema=jax.tree.map(lambda x: x + 1, first.ema))
    folder = tmp_path_factory.mktemp("run")
    meta = provenance.describe(config, ("a", "b", "c"), IMAGE_SHAPE, {}, None)
    with checkpoint.Checkpoints(folder / "checkpoints", 1) as checkpoints:
        checkpoints.save(first, {**meta, "best": None, "record": {}})
    return folder, first


def test_all_weights_of_a_run(saved):
    folder, first = saved
    for place in (folder, folder / "checkpoints" / "0"):
        found = initial.load(str(place), variables(3), data_mesh(jax.devices()[:1]))
        assert found.notes == ()
        expected = state.weights(first.model, None)["params"]
        jax.tree.map(np.testing.assert_array_equal, found.variables["params"], dict(expected))


def test_a_head_of_other_classes_is_new(saved):
    folder, first = saved
    found = initial.load(str(folder), variables(5), data_mesh(jax.devices()[:8]))
    assert found.notes == (f"the head of {folder} is replaced by a new one",)
    assert set(found.variables["params"]) == {"hidden_0"}
    created = state.create(
        models.build(MLP, 5),
        build(OptimizerConfig(), variables(5)["params"]),
        np.uint32(1),
        IMAGE_SHAPE,
        given=found.variables,
    )
    expected = state.weights(first.model, None)["params"]["hidden_0"]["kernel"]
    np.testing.assert_array_equal(created.params["hidden_0"]["kernel"], expected)
    assert created.params["head"]["kernel"].shape == (6, 5)


def test_another_model_is_refused(saved):
    folder, _ = saved
    wider = dataclasses.replace(MLP, mlp=MlpConfig(hidden_sizes=(7,)))
    mesh = data_mesh(jax.devices()[:1])
    with pytest.raises(UsageError, match=r"params/hidden_0/bias is \(6,\) there, but \(7,\) here"):
        initial.load(str(folder), variables(3, wider), mesh)
    deeper = dataclasses.replace(MLP, mlp=MlpConfig(hidden_sizes=(6, 6)))
    with pytest.raises(UsageError, match="params/hidden_1/bias is nothing there"):
        initial.load(str(folder), variables(3, deeper), mesh)


def test_places_without_weights(tmp_path):
    mesh = data_mesh(jax.devices()[:1])
    with pytest.raises(UsageError, match="is neither a run's folder nor that of a checkpoint"):
        initial.load(str(tmp_path), variables(3), mesh)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UsageError, match="holds no checkpoint yet"):
        initial.load(str(tmp_path), variables(3), mesh)
    with pytest.raises(UsageError, match=r"model.init_from=.*gone cannot be read: No such file"):
        initial.load(str(tmp_path / "gone"), variables(3), mesh)
