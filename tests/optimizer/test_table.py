from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

from jaxtrain import optimizer
from jaxtrain.config.schema import OptimizerConfig
from jaxtrain.errors import UsageError

PARAMS = {"head": {"bias": jnp.array([1.0, 2.0]), "kernel": jnp.array([[3.0, 4.0]])}}
GRADS = {"head": {"bias": jnp.array([0.1, -0.2]), "kernel": jnp.array([[0.3, 0.4]])}}
MASK = {"head": {"bias": False, "kernel": True}}


def updates(**keys) -> dict:
    """The third update, with gradients that stay the same and parameters that do as well."""
    config = OptimizerConfig(learning_rate=0.1, **keys)
    built = optimizer.build(config, PARAMS)
    state = built.init(PARAMS)
    for _ in range(3):
        after, state = built.update(GRADS, state, PARAMS, config.learning_rate)
    return jax.tree.map(lambda new, old: new - old, after, PARAMS)


def reference(transformation: optax.GradientTransformation) -> dict:
    state = transformation.init(PARAMS)
    for _ in range(3):
        found, state = transformation.update(GRADS, state, PARAMS)
    return found


@pytest.mark.parametrize(
    ("keys", "transformation"),
    [
        ({"name": "sgd"}, optax.sgd(0.1)),
        ({"name": "sgd", "momentum": 0.9}, optax.sgd(0.1, 0.9)),
        ({"name": "sgd", "momentum": 0.9, "nesterov": True}, optax.sgd(0.1, 0.9, nesterov=True)),
        ({"name": "adam"}, optax.adam(0.1)),
        ({"name": "adam", "b1": 0.5, "b2": 0.6, "eps": 0.01}, optax.adam(0.1, 0.5, 0.6, 0.01)),
        (
            {"name": "adamw", "weight_decay": 0.2},
            optax.adamw(0.1, weight_decay=0.2, mask=MASK),
        ),
        (
            {"name": "sgd", "weight_decay": 0.2, "momentum": 0.9},
            optax.chain(optax.add_decayed_weights(0.2, MASK), optax.sgd(0.1, 0.9)),
        ),
        (
            {"name": "adam", "weight_decay": 0.2, "decay_rules": ".*=0.5"},
            optax.chain(optax.add_decayed_weights(0.1), optax.adam(0.1)),
        ),
        (
            {"name": "sgd", "clip_norm": 0.1},
            optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1)),
        ),
        ({"name": "rmsprop"}, optax.rmsprop(0.1)),
        (
            {
                "name": "rmsprop",
                "b2": 0.8,
                "eps": 0.01,
                "initial_accumulator": 1.0,
                "momentum": 0.9,
                "nesterov": True,
            },
            optax.rmsprop(0.1, 0.8, 0.01, 1.0, momentum=0.9, nesterov=True),
        ),
        ({"name": "adagrad"}, optax.adagrad(0.1)),
        ({"name": "adagrad", "initial_accumulator": 0.0, "eps": 0.1}, optax.adagrad(0.1, 0.0, 0.1)),
        ({"name": "lion"}, optax.lion(0.1, weight_decay=0.0)),
        (
            {"name": "lion", "b1": 0.5, "b2": 0.6, "weight_decay": 0.2},
            optax.lion(0.1, 0.5, 0.6, weight_decay=0.2, mask=MASK),
        ),
        ({"name": "lars", "decay_rules": ".*=1"}, optax.lars(0.1)),
        (
            {
                "name": "lars",
                "weight_decay": 0.2,
                "trust_coefficient": 0.02,
                "momentum": 0.5,
                "nesterov": True,
            },
            optax.lars(0.1, 0.2, MASK, 0.02, trust_ratio_mask=MASK, momentum=0.5, nesterov=True),
        ),
        ({"name": "lamb", "decay_rules": ".*=1"}, optax.lamb(0.1)),
        (
            {"name": "lamb", "b1": 0.5, "b2": 0.6, "eps": 0.01, "weight_decay": 0.2}
            | {"decay_rules": ".*=1"},
            optax.lamb(0.1, 0.5, 0.6, 0.01, weight_decay=0.2),
        ),
    ],
)
def test_every_optimizer_is_optax(keys, transformation):
    for found, expected in zip(
        jax.tree.leaves(updates(**keys)), jax.tree.leaves(reference(transformation)), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=3e-7)


# What a network has: matrices, a convolution HWIO, and what is none.
SHAPES = {
    "stem_conv": {"kernel": (3, 3, 2, 5)},
    "hidden": {"kernel": (4, 6), "bias": (6,)},
    "embedding": {"table": (3, 4)},
    "head": {"kernel": (6, 3), "bias": (3,)},
}


def drawn(seed: int) -> dict:
    random = np.random.RandomState(seed)
    return jax.tree.map(
        lambda shape: jnp.asarray(random.randn(*shape), jnp.float32),
        SHAPES,
        is_leaf=lambda node: isinstance(node, tuple),
    )


def run(rates: list[float], **keys) -> dict:
    """The parameters after an update at each rate, as float64."""
    params = drawn(0)
    built = optimizer.build(OptimizerConfig(**keys), params)
    state = built.init(params)
    for step, rate in enumerate(rates, start=1):
        params, state = built.update(drawn(step), state, params, rate)
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)


RATES = [0.0, 0.1, 0.3, 0.2]
DECAY = 0.01


class Now(NamedTuple):
    """An update's number, learning rate and decay, and whether lars and lamb adapt the rate."""

    t: int
    rate: float
    decay: float
    layer: bool


def by_formula(name: str) -> dict:
    """The same in NumPy, as the papers write it."""
    with_decay = jax.tree.map_with_path(lambda path, _: path[-1].key == "kernel", drawn(0))

    def one(first, decayed, *gradients):
        w = np.asarray(first, np.float64)
        m, v = np.zeros_like(w), np.zeros_like(w)
        if name == "adagrad":
            v += 0.1
        for t, (rate, g) in enumerate(zip(RATES, gradients, strict=True), start=1):
            now = Now(t, rate, DECAY if decayed else 0.0, decayed)
            w, m, v = FORMULAS[name](w, m, v, np.asarray(g, np.float64), now)
        return w

    return jax.tree.map(one, drawn(0), with_decay, *(drawn(s) for s in range(1, 5)))


def norm(x):
    return np.sqrt((x * x).sum())


def adam_update(m, v, g, t, eps):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + eps), m, v


def sgd(w, m, v, g, now):
    m = 0.9 * m + g + now.decay * w
    return w - now.rate * m, m, v


def rmsprop(w, m, v, g, now):
    g = g + now.decay * w
    v = 0.9 * v + 0.1 * g * g
    m = 0.9 * m + now.rate * g / np.sqrt(v + 1e-8)
    return w - m, m, v


def adagrad(w, m, v, g, now):
    g = g + now.decay * w
    v = v + g * g
    return w - now.rate * g / np.sqrt(v + 1e-7), m, v


def adam(w, m, v, g, now):
    u, m, v = adam_update(m, v, g + now.decay * w, now.t, 1e-8)
    return w - now.rate * u, m, v


def adamw(w, m, v, g, now):
    u, m, v = adam_update(m, v, g, now.t, 1e-8)
    return w - now.rate * (u + now.decay * w), m, v


def lion(w, m, v, g, now):
    u = np.sign(0.9 * m + 0.1 * g)
    return w - now.rate * (u + now.decay * w), 0.99 * m + 0.01 * g, v


def lars(w, m, v, g, now):
    g = g + now.decay * w
    m = 0.9 * m + now.rate * (0.001 * norm(w) / norm(g) if now.layer else 1.0) * g
    return w - m, m, v


def lamb(w, m, v, g, now):
    u, m, v = adam_update(m, v, g, now.t, 1e-6)
    u = u + now.decay * w
    return w - now.rate * (norm(w) / norm(u) if now.layer else 1.0) * u, m, v


FORMULAS = {f.__name__: f for f in (sgd, rmsprop, adagrad, adam, adamw, lion, lars, lamb)}


@pytest.mark.parametrize("name", sorted(set(optimizer.OPTIMIZERS) - {"muon"}))
def test_the_first_updates_are_the_papers(name):
    """At rates that change, from 0 on; so it says where the momentum meets the rate."""
    keys = {"momentum": 0.9} if name in ("sgd", "rmsprop") else {}
    found = run(RATES, name=name, weight_decay=DECAY, **keys)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(by_formula(name)), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=5e-6)


@pytest.mark.parametrize("keys", [{}, {"momentum": 0.8, "b1": 0.5, "b2": 0.6, "eps": 1e-6}])
def test_muon_is_optax(keys):
    dimensions = jax.tree.map(lambda _: None, drawn(0))
    dimensions["stem_conv"]["kernel"] = optax.contrib.MuonDimensionNumbers((0, 1, 2), 3)
    dimensions["hidden"]["kernel"] = optax.contrib.MuonDimensionNumbers()
    decayed = {"stem_conv": {"kernel": True}, "hidden": {"kernel": True, "bias": False}}
    named = {"momentum": "beta", "b1": "adam_b1", "b2": "adam_b2", "eps": "eps"}
    for decay in (0.0, 0.1):
        reference = optax.contrib.muon(
            0.1,
            weight_decay=decay,
            weight_decay_mask={
                **decayed,
                "embedding": {"table": False},
                "head": {"kernel": False, "bias": False},
            },
            muon_weight_dimension_numbers=dimensions,
            **{named[key]: value for key, value in keys.items()},
        )
        params = drawn(0)
        state = reference.init(params)
        for step in range(1, 4):
            found, state = reference.update(drawn(step), state, params)
            params = optax.apply_updates(params, found)
        ours = run(
            [0.1] * 3,
            name="muon",
            weight_decay=decay,
            decay_rules="head=0; kernel=1; .*=0",
            **keys,
        )
        for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(params), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


def test_muon_makes_a_convolutions_update_orthogonal():
    """Seen as a matrix of all inputs by outputs; of five iterations, all singular values near 1."""
    before, after = drawn(0)["stem_conv"]["kernel"], run([1.0], name="muon")["stem_conv"]["kernel"]
    values = np.linalg.svd((after - before).reshape(18, 5), compute_uv=False)
    assert np.all((values > 0.6) & (values < 1.3))


def test_muon_without_a_matrix_is_refused():
    with pytest.raises(UsageError, match="muon' finds nothing to train"):
        optimizer.build(OptimizerConfig(name="muon"), PARAMS)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"name": "adamm"}, "did you mean 'adam'"),
        ({"name": "adam", "momentum": 0.9}, "optimizer.momentum=0.9 is set, but adam"),
        ({"name": "adam", "nesterov": True}, "optimizer.nesterov=True is set"),
        ({"name": "sgd", "b1": 0.9}, "optimizer.b1=0.9 is set, but sgd"),
        ({"name": "sgd", "nesterov": True}, "needs optimizer.momentum"),
        ({"name": "rmsprop", "nesterov": True}, "needs optimizer.momentum"),
        ({"name": "rmsprop", "b1": 0.9}, "optimizer.b1=0.9 is set, but rmsprop"),
        ({"name": "adagrad", "momentum": 0.9}, "optimizer.momentum=0.9 is set, but adagrad"),
        ({"name": "lion", "eps": 0.1}, "optimizer.eps=0.1 is set, but lion"),
        ({"name": "lamb", "trust_coefficient": 1.0}, "optimizer.trust_coefficient=1.0 is set"),
        ({"name": "lars", "eps": 1.0}, "optimizer.eps=1.0 is set, but lars"),
        ({"name": "muon", "nesterov": True}, "optimizer.nesterov=True is set, but muon"),
        ({"name": "adam", "initial_accumulator": 1.0}, "optimizer.initial_accumulator=1.0 is set"),
        ({"weight_decay": 0.1, "decay_rules": "w=1; .*=0"}, "'w' matches no parameter"),
        ({"name": "lamb", "decay_rules": "w=1; .*=0"}, "'w' matches no parameter"),
        ({"rate_rules": "w=1; .*=0"}, "optimizer.rate_rules: 'w' matches no parameter"),
        ({"rate_rules": "kernel=2"}, "end with '.*=1'"),
        ({"rate_rules": ".*=0"}, "optimizer.rate_rules freezes every parameter"),
    ],
)
def test_optimizer_refuses(keys, said):
    with pytest.raises(UsageError) as caught:
        optimizer.build(OptimizerConfig(**keys), PARAMS)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
