"""Every optimizer's state: on split parameters, and through a checkpoint."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import data_mesh
from jax.sharding import PartitionSpec
from steps import BATCH, TRAIN, close, fixed, leaves_equal, new_state, trained

from jaxtrain import checkpoint, data, optimizer
from jaxtrain.checkpoint import Checkpoints
from jaxtrain.config.schema import OptimizerConfig
from jaxtrain.parallel.mesh import build_mesh
from jaxtrain.state import TrainState
from jaxtrain.step import Resident, gather, train_step

# In the state, for each parameter; one where nothing is said.
ARRAYS = {"adam": 2, "adamw": 2, "lamb": 2, "muon": 2, "rmsprop": 2}
META = {"class_names": ["a", "b"], "best": None}


def config(name: str, **keys) -> OptimizerConfig:
    """An optimizer with all kinds of state that it may have."""
    momentum = {"momentum": 0.9} if name in ("sgd", "rmsprop") else {}
    # LARS's ratio is for rates that are thousands of times as high.
    rate = {"lars": 10.0, "adagrad": 0.05}.get(name, 0.01)
    return OptimizerConfig(name=name, learning_rate=rate, weight_decay=0.01, **momentum, **keys)


def steps(step, state: TrainState, first: int, last: int) -> TrainState:
    resident = Resident(jnp.asarray(TRAIN.images), jnp.asarray(TRAIN.labels))
    for number in range(first, last + 1):
        indices = data.Sampler(TRAIN.size, BATCH, 5).indices(number)
        state, _ = step(state, gather(resident, jnp.asarray(indices, jnp.int32)))
    return state


@pytest.mark.parametrize(
    "keys",
    [
        *({"name": name} for name in sorted(optimizer.OPTIMIZERS)),
        {"name": "adam", "rate_rules": "hidden_0/bias=0; head=10; .*=1", "skip_nonfinite": 3},
        {"name": "muon", "rate_rules": "head=0; .*=1"},
    ],
    ids=lambda keys: "-".join(map(str, keys.values())),
)
def test_a_run_goes_on_from_a_checkpoint_bit_for_bit(tmp_path, keys):
    same = fixed(updates=config(**keys))
    mesh = data_mesh(jax.devices()[:1])
    step = jax.jit(functools.partial(train_step, same))
    half = steps(step, new_state(mesh, same), 1, 3)
    with Checkpoints(tmp_path, 1) as checkpoints:
        checkpoints.save(half, META)
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), half
    )
    restored = checkpoint.restore_state(tmp_path, 3, abstract)
    assert jax.tree.structure(restored) == jax.tree.structure(half)
    whole, parts = steps(step, half, 4, 6), steps(step, restored, 4, 6)
    leaves_equal(whole, parts)
    assert int(parts.step) == 6


@pytest.mark.parametrize("name", sorted(optimizer.OPTIMIZERS))
@pytest.mark.parametrize("rate_rules", [".*=1", "head/bias=0; .*=1"])
def test_a_state_lies_as_the_parameters_do(name, rate_rules):
    same = fixed(updates=config(name, rate_rules=rate_rules))
    mesh = build_mesh("data=1,fsdp=2", jax.devices()[:2])
    state = new_state(mesh, same, "fsdp")
    specs = {leaf.shape: leaf.sharding.spec for leaf in jax.tree.leaves(state.params)}
    assert PartitionSpec("fsdp") in specs.values()
    of_parameters = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.shape in specs]
    for leaf in of_parameters:
        assert leaf.sharding.spec == specs[leaf.shape]
    trained_arrays = 4 - len(same.optimizer.frozen)
    # Muon has one array for the only kernel that is its own.
    expected = ARRAYS.get(name, 1) * trained_arrays - (name == "muon")
    assert len(of_parameters) == expected


@pytest.mark.parametrize("name", sorted(set(optimizer.OPTIMIZERS) - {"adam", "sgd"}))
def test_split_parameters_are_trained_as_whole_ones(name):
    """And so on devices that have a program each."""
    options = {"updates": config(name), "operations": ""}
    alone, _ = trained(1, "device", 3, **options)
    split, _ = trained(4, "device", 3, mesh="data=2,fsdp=2", rules="fsdp", **options)
    mapped, _ = trained(2, "device", 3, mode="pmap", **options)
    for other in (split, mapped):
        if name == "lion":  # it takes the sign of what may be rounding alone
            share = np.mean(
                [np.isclose(a, b, atol=1e-5).mean() for a, b in both(alone.params, other.params)]
            )
            assert share > 0.98
        else:
            close(alone.params, other.params, rtol=1e-3, atol=2e-4)


def both(one, other):
    return zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
