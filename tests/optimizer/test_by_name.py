"""Rate factors and frozen parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from steps import close, leaves_equal, trained

from jaxtrain import optimizer, rules
from jaxtrain.config.schema import OptimizerConfig

LAYERS = ("stem", "block/first", "block/second", "head")


def drawn(seed: int) -> dict:
    """Two parameters in each of four layers."""
    random = np.random.RandomState(seed)

    def layer() -> dict:
        return {
            "kernel": jnp.asarray(random.randn(3, 2), jnp.float32),
            "bias": jnp.asarray(random.randn(2), jnp.float32),
        }

    return {
        "stem": layer(),
        "block": {"first": layer(), "second": layer()},
        "head": layer(),
    }


NAMES = rules.parameter_names(drawn(0))


def built(**keys) -> optimizer.Optimizer:
    return optimizer.build(OptimizerConfig(**keys), drawn(0))


def by_name(tree) -> dict:
    return dict(
        zip(rules.parameter_names(tree), map(np.asarray, jax.tree.leaves(tree)), strict=True)
    )


def updated(made: optimizer.Optimizer, steps: int = 3) -> dict:
    params = drawn(0)
    state = made.init(params)
    for step in range(1, steps + 1):
        gradients = made.trained(drawn(step))
        params, state = made.update(gradients, state, params, 0.1)
    return by_name(params)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=4, max_size=4).filter(any))
def test_the_first_update_is_scaled_by_the_layers_factor(factors):
    """Whatever the decay; what has 0 keeps its bits."""
    text = "; ".join(f"{layer}={factor}" for layer, factor in zip(LAYERS, factors, strict=True))
    found = updated(built(name="adamw", weight_decay=0.1, rate_rules=text), steps=1)
    plain = updated(built(name="adamw", weight_decay=0.1), steps=1)
    before = by_name(drawn(0))
    for layer, factor in zip(LAYERS, factors, strict=True):
        for name in (f"{layer}/kernel", f"{layer}/bias"):
            if factor == 0.0:
                np.testing.assert_array_equal(found[name], before[name])
            expected = before[name] + factor * (plain[name] - before[name])
            np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6)


@given(st.sets(st.sampled_from(NAMES), min_size=1, max_size=len(NAMES) - 1))
def test_whole_gives_back_what_trained_takes_away(frozen):
    made = optimizer.build(OptimizerConfig(), drawn(0), frozen)
    kept = made.trained(drawn(1))
    assert rules.parameter_names(kept) == [name for name in NAMES if name not in frozen]
    found = by_name(made.whole(kept, drawn(2)))
    for name in NAMES:
        expected = by_name(drawn(2 if name in frozen else 1))[name]
        np.testing.assert_array_equal(found[name], expected)


def shapes(tree) -> list:
    return [leaf.shape for leaf in jax.tree.leaves(tree)]


FROZEN = "block=0; head=2; .*=1"
NAMES_OF_ALL = sorted(optimizer.OPTIMIZERS)


@pytest.mark.parametrize("name", NAMES_OF_ALL)
def test_what_is_frozen_keeps_its_bits_and_has_no_state(name):
    made = built(name=name, weight_decay=0.1, rate_rules=FROZEN)
    found, before = updated(made), by_name(drawn(0))
    for parameter in NAMES:
        same = np.array_equal(found[parameter], before[parameter])
        assert same == parameter.startswith("block/")
    alone = {layer: drawn(0)[layer] for layer in ("stem", "head")}
    expected = optimizer.build(OptimizerConfig(name=name, weight_decay=0.1), alone).init(alone)
    assert shapes(made.init(drawn(0))) == shapes(expected)


@pytest.mark.parametrize("name", NAMES_OF_ALL)
@pytest.mark.parametrize("rate_rules", [".*=1", FROZEN])
def test_every_array_of_a_state_is_told_its_parameter(name, rate_rules):
    """That is how the state comes to lie on the devices as the parameters do."""
    made = built(name=name, weight_decay=0.1, rate_rules=rate_rules)
    state = made.init(drawn(0))
    named = jax.tree.unflatten(jax.tree.structure(drawn(0)), [f"{n}!" for n in NAMES])
    found = optimizer.like_parameters(made, state, named, "none!")
    assert jax.tree.structure(found) == jax.tree.structure(state)
    shapes = {f"{n}!": leaf.shape for n, leaf in by_name(drawn(0)).items()}
    told = set()
    for leaf, whose in zip(jax.tree.leaves(state), jax.tree.leaves(found), strict=True):
        assert whose == "none!" or leaf.shape == shapes[whose]
        told.add(whose)
    trained = set(shapes) if rate_rules == ".*=1" else {n for n in shapes if "block" not in n}
    if name != "sgd":
        assert told - {"none!"} == trained


def test_a_factor_of_one_changes_nothing_of_the_state():
    plain, ruled = built(), built(rate_rules="head=1; .*=1")
    assert jax.tree.structure(plain.init(drawn(0))) == jax.tree.structure(ruled.init(drawn(0)))
    leaves_equal(updated(plain), updated(ruled))


def test_clipping_sees_the_trained_gradients_alone():
    made = built(name="sgd", clip_norm=0.5, rate_rules="head/bias=1; .*=0")
    found, before = updated(made, 1), by_name(drawn(0))
    gradient = by_name(drawn(1))["head/bias"]
    expected = before["head/bias"] - 0.1 * gradient * 0.5 / np.linalg.norm(gradient)
    np.testing.assert_allclose(found["head/bias"], expected, rtol=1e-5)


def test_what_the_rules_match_is_told_where_they_change_something():
    def told(**keys):
        found = optimizer.rules_in_effect(OptimizerConfig(**keys), drawn(0))
        return {
            key: [(m.pattern, m.value, len(m.names)) for m in each] for key, each in found.items()
        }

    decay = {"optimizer.decay_rules": [("kernel", 1.0, 4), (".*", 0.0, 4)]}
    assert told() == {}
    assert told(weight_decay=0.1) == decay
    assert told(name="lars") == decay
    rate = [("block", 0.0, 4), ("head", 2.0, 2), (".*", 1.0, 2)]
    assert told(rate_rules=FROZEN) == {"optimizer.rate_rules": rate}
    assert told(rate_rules="head=1; .*=1") == {}


@pytest.mark.parametrize(
    "keys",
    [
        {"devices": 8},
        {"devices": 8, "mode": "pmap"},
        {"devices": 2, "accumulate": 4},
        {"devices": 4, "mesh": "data=2,fsdp=2", "rules": "fsdp"},
        {"devices": 1, "most": 4, "lengths": (1, 4)},
    ],
    ids=str,
)
def test_what_is_frozen_stays_however_the_step_runs(keys):
    updates = OptimizerConfig(learning_rate=0.01, rate_rules="hidden_0/kernel=0; head=2; .*=1")
    options = {"updates": updates, "operations": "flip"}
    keys = dict(keys)
    alone, _ = trained(1, "device", 5, **options)
    first, _ = trained(1, "device", 1, updates=OptimizerConfig(rate_rules=updates.rate_rules))
    other, _ = trained(keys.pop("devices"), "device", 5, **options, **keys)
    close(alone.params, other.params, rtol=1e-4, atol=1e-5)
    initial = first.params["hidden_0"]["kernel"]
    np.testing.assert_array_equal(other.params["hidden_0"]["kernel"], initial)
