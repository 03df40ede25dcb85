"""Weights to start from: those of another run, by their names."""

import dataclasses
import shutil
import weakref
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers import IMAGE_SHAPE, data_mesh

from jaxtrain import checkpoint, initial, models, provenance, state, stored
from jaxtrain.checkpoint import reading
from jaxtrain.config import Config
from jaxtrain.config.schema import MlpConfig, ModelConfig, OptimizerConfig, TrainConfig
from jaxtrain.errors import UsageError
from jaxtrain.normalise import Normalise
from jaxtrain.optimizer import build
from jaxtrain.pretrained import Imported

MLP = ModelConfig(mlp=MlpConfig(hidden_sizes=(6,)))
CLASSES = ("a", "b", "c")
NORMALISE = Normalise((0.0,), (1.0,))


def load(place, abstract, *, devices=1, class_names=CLASSES, normalise=NORMALISE):
    mesh = data_mesh(jax.devices()[:devices])
    return initial.load(str(place), abstract, mesh, class_names, normalise)


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
    meta = provenance.describe(config, CLASSES, IMAGE_SHAPE, {}, None)
    with checkpoint.Checkpoints(folder / "checkpoints", 1) as checkpoints:
        checkpoints.save(first, {**meta, "best": None, "record": {}})
    return folder, first


def test_all_weights_of_a_run(saved):
    folder, first = saved
    for place in (folder, folder / "checkpoints" / "0"):
        found = load(place, variables(3))
        assert found.notes == ()
        expected = state.weights(first.model, None)["params"]
        jax.tree.map(np.testing.assert_array_equal, found.variables["params"], dict(expected))


def test_a_head_of_other_classes_is_new(saved):
    folder, first = saved
    found = load(folder, variables(5), devices=8, class_names=tuple("abcde"))
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
    with pytest.raises(UsageError, match=r"params/hidden_0/bias is \(6,\) there, but \(7,\) here"):
        load(folder, variables(3, wider))
    deeper = dataclasses.replace(MLP, mlp=MlpConfig(hidden_sizes=(6, 6)))
    with pytest.raises(UsageError, match="params/hidden_1/bias is nothing there"):
        load(folder, variables(3, deeper))


def test_places_without_weights(tmp_path):
    with pytest.raises(UsageError, match="is neither a run's folder nor that of a checkpoint"):
        load(tmp_path, variables(3))
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UsageError, match="holds no checkpoint yet"):
        load(tmp_path, variables(3))
    with pytest.raises(UsageError, match=r"model.init_from=.*gone cannot be read: No such file"):
        load(tmp_path / "gone", variables(3))


def test_another_meaning_of_the_same_weights_is_said(saved):
    folder, _ = saved
    found = load(
        folder, variables(3), class_names=("a", "x", "c"), normalise=Normalise((0.5,), (1.0,))
    )
    assert found.notes == (
        f"the head of {folder} is kept, but its classes are others: 1 is 'b' there, 'x' here",
        f"{folder} was trained with another mean of examples: (0.0,) there, (0.5,) here",
    )
    many = Normalise((0.0,) * 5, (2.0,) + (1.0,) * 4)
    found = load(folder, variables(5), class_names=tuple("xyzuv"), normalise=many)
    assert found.notes == (
        f"the head of {folder} is replaced by a new one",
        f"{folder} was trained with another std of examples",
    )
    same = Normalise((0.0,), (1.0,) * 3)
    assert load(folder, variables(3), normalise=same).notes == ()


def test_a_step_that_a_live_run_removes_is_looked_for_again(saved, tmp_path, monkeypatch):
    folder, first = saved
    shutil.copytree(folder, tmp_path / "run")
    checkpoints = tmp_path / "run" / "checkpoints"
    described = stored.describe

    def replaced(directory, step):
        if step == 0:
            meta = checkpoint.read_meta(directory, 0)
            with checkpoint.Checkpoints(directory, 1) as live:
                live.save(dataclasses.replace(first, step=first.step + 2), meta)
            assert checkpoint.list_steps(directory) == [2]
        return described(directory, step)

    monkeypatch.setattr(stored, "describe", replaced)
    found = load(tmp_path / "run", variables(3))
    assert checkpoint.list_steps(checkpoints) == [2]
    expected = state.weights(first.model, None)["params"]
    jax.tree.map(np.testing.assert_array_equal, found.variables["params"], dict(expected))


@pytest.mark.parametrize("refused", ["list_steps", "describe", "is_dir"])
def test_what_may_not_be_read_is_said(saved, monkeypatch, refused):
    folder, _ = saved

    def refuse(*_):
        raise PermissionError(13, "Permission denied", str(folder))

    owner = {"list_steps": reading, "describe": stored, "is_dir": Path}[refused]
    monkeypatch.setattr(owner, refused, refuse)
    with pytest.raises(
        UsageError, match=r"model.init_from=.* cannot be read: Permission denied; make it readable"
    ):
        load(folder, variables(3))


def test_weights_are_read_when_they_are_asked_for_and_kept_until_they_are_taken():
    loaded = []

    def read():
        loaded.append(Imported({"params": {}}, ("a note",)))
        return loaded[-1]

    given = initial.Given(read)
    assert loaded == []
    assert given.check() == given.check() == ("a note",)
    assert len(loaded) == 1
    there = weakref.ref(loaded.pop())
    assert given.take() == {"params": {}}
    assert there() is None
    assert given.take() == {"params": {}}
    assert len(loaded) == 1
