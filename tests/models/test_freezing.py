"""A frozen backbone, and batch statistics that stay."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from helpers import IMAGE_SHAPE, data_mesh
from steps import BATCH, TRAIN, fixed, leaves_equal, new_state

from jaxtrain import data, models, optimizer, rules, state
from jaxtrain.config.schema import MlpConfig, ModelConfig, OptimizerConfig, ResnetConfig
from jaxtrain.errors import UsageError
from jaxtrain.step import Fixed, train_step

USER_MODULES = """
import flax.linen as nn
import jax
from flax import nnx

class Linen(nn.Module):
    num_classes: int
    freeze_batch_stats: bool = False

    @nn.compact
    def __call__(self, image, train):
        hidden = nn.Dense(8, name="body")(image.reshape(len(image), -1))
        running = self.freeze_batch_stats or not train
        hidden = nn.BatchNorm(use_running_average=running, name="norm")(hidden)
        hidden = nn.Dropout(0.5, deterministic=not train)(nn.relu(hidden))
        return nn.Dense(self.num_classes, name="head")(hidden)

class Nnx(nnx.Module):
    def __init__(self, num_classes, freeze_batch_stats=False, *, rngs):
        self.freeze_batch_stats = freeze_batch_stats
        self.body = nnx.Linear(30, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.head = nnx.Linear(8, num_classes, rngs=rngs)

    def __call__(self, image, train):
        hidden = self.body(image.reshape(len(image), -1))
        running = self.freeze_batch_stats or not train
        return self.head(jax.nn.relu(self.norm(hidden, use_running_average=running)))

class Unaware(nn.Module):
    @nn.compact
    def __call__(self, image, train):
        hidden = nn.Dense(8, name="body")(image.reshape(len(image), -1))
        hidden = nn.BatchNorm(use_running_average=not train, name="norm")(hidden)
        return nn.Dense(10, name="head")(hidden)

class Headless(nn.Module):
    @nn.compact
    def __call__(self, image):
        return nn.Dense(10, name="classifier")(image.reshape(len(image), -1))
"""


@pytest.fixture(autouse=True)
def own_modules(tmp_path, monkeypatch):
    (tmp_path / "freezing_modules.py").write_text(USER_MODULES)
    monkeypatch.syspath_prepend(tmp_path)


def set_up(config: ModelConfig, **updates) -> Fixed:
    model = models.build(config, 10)
    variables = state.abstract_model(model, IMAGE_SHAPE, 10)
    frozen = models.frozen(config, model, variables)
    made = optimizer.build(
        OptimizerConfig(learning_rate=0.1, **updates), variables["params"], frozen
    )
    return dataclasses.replace(fixed(name="plain"), model=model, optimizer=made)


def trained(same: Fixed, steps: int = 2) -> tuple[state.TrainState, state.TrainState]:
    """The states before and after some steps."""
    before = current = new_state(data_mesh(jax.devices()[:1]), same)
    step = jax.jit(functools.partial(train_step, same))
    for number in range(1, steps + 1):
        indices = data.Sampler(TRAIN.size, BATCH, 5).indices(number)
        batch = data.Batch(
            TRAIN.images[indices],
            TRAIN.labels[indices],
            np.ones(BATCH, bool),
            np.arange(BATCH, dtype=np.int32),
        )
        current, _ = step(current, batch)
    return jax.device_get(before), jax.device_get(current)


def moved(before, after) -> set[str]:
    """Names of the arrays of a tree that changed."""
    names = rules.parameter_names(before)
    leaves = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return {name for name, (a, b) in zip(names, leaves, strict=True) if not np.array_equal(a, b)}


RESNET = ResnetConfig(width=0.25)


@pytest.mark.parametrize(
    "keys",
    [
        {"name": "resnet8", "resnet": RESNET},
        {"name": "mlp", "mlp": MlpConfig(hidden_sizes=(5,))},
        {"name": "freezing_modules:Linen"},
        {"name": "freezing_modules:Nnx"},
    ],
    ids=lambda keys: keys["name"],
)
def test_a_frozen_backbone_keeps_its_bits(keys):
    before, after = trained(set_up(ModelConfig(freeze="backbone", **keys), weight_decay=0.1))
    assert moved(before.params, after.params) == {"head/kernel", "head/bias"}
    leaves_equal(before.collections, after.collections)
    shapes = {leaf.shape for leaf in jax.tree.leaves(after.opt_state) if leaf.ndim}
    assert shapes == {leaf.shape for leaf in jax.tree.leaves(after.params["head"])}


@pytest.mark.parametrize(
    ("name", "keys", "params_stay", "statistics_stay"),
    [
        ("resnet8", {"freeze": "backbone", "freeze_batch_stats": False}, True, False),
        ("resnet8", {"freeze_batch_stats": True}, False, True),
        ("freezing_modules:Linen", {"freeze_batch_stats": True}, False, True),
        ("freezing_modules:Nnx", {"freeze_batch_stats": True}, False, True),
        (
            "freezing_modules:Unaware",
            {"freeze": "backbone"} | {"freeze_batch_stats": False},
            True,
            False,
        ),
    ],
)
def test_statistics_move_or_stay_as_they_are_told(name, keys, params_stay, statistics_stay):
    before, after = trained(set_up(ModelConfig(name=name, resnet=RESNET, **keys)))
    params = moved(before.params, after.params)
    assert (params == {"head/kernel", "head/bias"}) == params_stay
    assert (moved(before.collections, after.collections) == set()) == statistics_stay


def test_frozen_statistics_are_what_training_normalises_by():
    same = set_up(ModelConfig(name="resnet8", resnet=RESNET, freeze_batch_stats=True))
    current = new_state(data_mesh(jax.devices()[:1]), same)
    row = np.arange(4, dtype=np.int32)
    image = same.normalise(TRAIN.images[:4])
    running = jax.tree.map(lambda leaf: leaf + 0.3, current.collections)
    training, after = same.model.apply(
        current.params, running, image, row=row, key=jax.random.key(0)
    )
    evaluation, _ = same.model.apply(current.params, running, image, row=row, key=None)
    np.testing.assert_allclose(training, evaluation, rtol=1e-5, atol=1e-6)
    leaves_equal(after, running)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"name": "mlp", "freeze_batch_stats": True}, "mlp has no batch statistics"),
        (
            {"name": "resnet8", "freeze_batch_stats": True}
            | {"resnet": ResnetConfig(norm="group", groups=8)},
            "resnet8 has no batch statistics",
        ),
        ({"name": "freezing_modules:Headless", "freeze": "backbone"}, "is named head; "),
        ({"name": "freezing_modules:Unaware", "freeze": "backbone"}, "freeze_batch_stats=False"),
        ({"name": "freezing_modules:Unaware", "freeze_batch_stats": True}, "takes no argument"),
    ],
)
def test_what_cannot_be_frozen_is_refused(keys, said):
    with pytest.raises(UsageError, match=r"^model\.freeze") as caught:
        set_up(ModelConfig(**keys))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_frozen_head_leaves_nothing():
    with pytest.raises(UsageError, match=r"freezes every parameter that model\.freeze leaves"):
        set_up(ModelConfig(freeze="backbone"), rate_rules="head=0; .*=1")
