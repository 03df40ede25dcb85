"""Each of several models in one program is what it would be alone."""

import functools
import json

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from steps import close, leaves_equal

from jaxtrain import data, setup, state
from jaxtrain.config import from_dict, to_json, variants
from jaxtrain.errors import UsageError
from jaxtrain.evaluation import Evaluator, summaries
from jaxtrain.feed import Feed
from jaxtrain.parallel.mesh import build_mesh
from jaxtrain.replicas import map_replicas, select
from jaxtrain.tasks import CLASSIFICATION

STEPS = 3
DATA = {
    "source": "synthetic",
    "synthetic": {"image_shape": (8, 8, 3), "examples": 50, "eval_examples": 21},
    "augment": "flip|pad_crop(1)",
}
MLP = {"name": "mlp", "mlp": {"hidden_sizes": (12,), "dropout": 0.3}}
RESNET = {"name": "resnet8", "resnet": {"width": 0.125, "dropout": 0.3}}
SGD = {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9, "weight_decay": 1e-3}


HALF = {"name": "mlp", "dtype": "float16", "mlp": {"hidden_sizes": (12,)}}
MIXING = "flip|mixup_or_cutmix(mixup=0.4, cutmix=1.0)"


def config(
    *,
    model=MLP,
    optimizer=SGD,
    mode="jit",
    cache="device",
    augment=DATA["augment"],
    rules=None,
    **train,
):
    return from_dict(
        {
            "seed": 3,
            "data": {**DATA, "cache": cache, "augment": augment},
            "model": model,
            "optimizer": optimizer,
            "schedule": {"name": "cosine"},
            "train": {"batch_size": 16, "steps": STEPS, "ema_decay": 0.9, **train},
            "report": {"every_steps": 2},
            "parallel": {"mode": mode, "rules": rules or "replicated"},
        }
    )


@functools.cache
def trained(text, devices=1):
    """The run, and the states and metrics after each step, on the host."""
    keys = json.loads(text)
    mesh = build_mesh("fsdp=-1" if "rules" in keys else "data=-1", jax.devices()[:devices])
    run = setup.build(config(**keys), mesh)
    return run, *steps_of(run)


def steps_of(run):
    current = run.create_state()
    feed = Feed(run.dataset.train, run.config.data, run.devices, run.config.parallel.mode)
    update = feed.compile_calls(run.step, run.abstract, run.rows, 1)
    states, history = [jax.device_get(current)], []
    for _, batch in feed.calls(run.batches(), [range(i, i + 1) for i in range(1, STEPS + 1)], 1):
        (current, metrics), _ = update(current, batch, False)
        states.append(jax.device_get(current))
        history.append(jax.device_get(metrics))
    return states, history


def without_step(whole):
    return whole.replace(step=None)


def several(devices=1, **keys):
    return trained(json.dumps(keys), devices)


def alone(variant):
    """The states and metrics of a model that is trained alone."""
    return _alone(to_json(variant.config))


@functools.cache
def _alone(text):
    mesh = build_mesh("data=-1", jax.devices()[:1])
    return steps_of(setup.build(from_dict(json.loads(text)), mesh))


SEEDS = {"replicas": 3}
RATES = {"replicate": "optimizer.learning_rate=0.05,0.01"}
WARMUPS = {"replicate": "schedule.warmup_steps=0,1"}
DECAYS = {"replicate": "optimizer.weight_decay=0,0.1"}
SMOOTHINGS = {"replicate": "train.label_smoothing=0,0.2"}
CLIPS = {"replicate": "optimizer.clip_norm=0.1,10"}
MOMENTA = {"replicate": "optimizer.momentum=0,0.9"}
DROPOUTS = {"replicate": "model.mlp.dropout=0,0.5"}
AVERAGES = {"replicate": "train.ema_decay=0.5,0.9"}


@pytest.mark.parametrize(
    "keys",
    [
        SEEDS,
        SEEDS | {"accumulate": 2},
        SEEDS | {"cache": "none"},
        SEEDS | {"augment": MIXING},
        SEEDS | {"model": HALF},
        {"replicas": 2, "model": RESNET},
        RATES,
        WARMUPS,
        DECAYS,
        SMOOTHINGS,
        CLIPS,
        MOMENTA,
        DROPOUTS,
        AVERAGES,
    ],
    ids=str,
)
def test_each_model_is_what_it_is_alone(keys):
    """Its first weights bit for bit, and after some steps all of its state but for rounding."""
    run, states, history = several(**keys)
    for k, variant in enumerate(run.variants):
        own_states, own_history = alone(variant)
        first, last = (without_step(states[i]) for i in (0, -1))
        leaves_equal(select(first, k).params, own_states[0].params)
        close(select(last, k), without_step(own_states[-1]), rtol=2e-4, atol=2e-5)
        for metrics, own in zip(history, own_history, strict=True):
            close(select(metrics, k), own, rtol=2e-5, atol=2e-6)
    assert states[-1].step == STEPS


def test_arrays_are_split_as_those_of_one_model():
    run, *_ = several(4, **SEEDS, rules="fsdp")
    one = run.abstract_one.params["hidden_0"]["kernel"].sharding.spec
    assert "fsdp" in one
    assert run.abstract.params["hidden_0"]["kernel"].sharding.spec == PartitionSpec(None, *one)
    assert run.abstract.step.shape == ()


@pytest.mark.parametrize("keys", [SEEDS, RATES], ids=str)
def test_the_models_differ(keys):
    run, states, _ = several(**keys)
    kernels = jax.tree.leaves(states[-1].params)[-1]
    assert np.abs(kernels[0] - kernels[1]).max() > 1e-3
    starts = jax.tree.leaves(states[0].params)[-1]
    assert (np.abs(starts[0] - starts[1]).max() > 1e-3) == (not run.is_sweep)


@pytest.mark.parametrize(
    ("devices", "keys"),
    [
        (8, {}),
        (8, {"mode": "pmap"}),
        (4, {"cache": "none"}),
        (8, {"replicas": 2, "model": RESNET}),
        (4, {"accumulate": 2}),
        (4, {"rules": "fsdp"}),
    ],
    ids=str,
)
def test_they_are_the_same_on_other_devices(devices, keys):
    keys = SEEDS | keys
    expected = several(**{key: keys[key] for key in keys if key not in ("mode", "rules")})
    found = several(devices, **keys)
    leaves_equal(found[1][0].params, expected[1][0].params)
    close(found[1][-1], expected[1][-1], rtol=2e-4, atol=2e-5)
    close(found[2], expected[2])


def test_a_shared_batch_is_read_once():
    assert several(**RATES)[0].rows == 16
    assert several(**SEEDS)[0].rows == 48


def test_rows_come_by_turns():
    samplers = [data.Sampler(50, 4, seed) for seed in (3, 4)]
    each = [sampler.batches(5) for sampler in samplers]
    both = data.Interleaved(each)
    assert len(both) == 5
    for step in range(5):
        for k in range(2):
            np.testing.assert_array_equal(both[step][k::2], each[k][step])
            np.testing.assert_array_equal(both.row_seeds(step)[k::2], each[k].row_seeds(step))


@pytest.mark.parametrize("model", [MLP, RESNET], ids=["vmapped", "unrolled"])
def test_each_is_evaluated_as_alone(model):
    run, states, _ = several(replicas=2, model=model)
    found = summaries_of(run, states[-1].model, 2)
    singles = [summaries_of(run, select(states[-1].model, k), None)[0] for k in range(2)]
    for one, other in zip(found, singles, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-6)
        assert (one["accuracy"], one["count"]) == (other["accuracy"], 21)
    assert len({one["loss"] for one in singles}) == 2


def summaries_of(run, model, models):
    abstract = state.weights((run.abstract_one if models is None else run.abstract).model, "raw")
    evaluator = Evaluator(
        model=run.fixed.model,
        normalise=run.fixed.normalise,
        task=CLASSIFICATION,
        split=run.dataset.eval,
        config=run.config.data,
        batch_size=8,
        mesh=run.devices,
        variables=abstract,
        replicas=models,
        unroll=run.fixed.unroll,
    )
    every = evaluator.results(state.weights(model, "raw"), lambda done, total: None)
    return summaries(evaluator.summary, run.variants[: models or 1], every)


def test_of_each_is_the_same_in_both_ways():
    variables = {"w": np.arange(6, dtype=np.float32).reshape(3, 2)}
    batch = data.Batch(np.ones((4, 2), np.float32), None, None, None)

    def function(variables, batch):
        return {"out": batch.image @ variables["w"]}

    one, other = (
        map_replicas(function, variables, batch, count=3, unroll=unroll) for unroll in (False, True)
    )
    assert one["out"].shape == (4, 3)
    np.testing.assert_array_equal(one["out"], other["out"])


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ({"replicas": 2, "export_replica": 2}, "export_replica=2 must be below 2"),
        ({"export_replica": 1}, "export_replica=1 must be below 1"),
        ({"replicas": 1001}, "train.replicas=1,001 must be 1,000 at most"),
        ({"replicate": "optimizer.learning_rate"}, "KEY=VALUE,VALUE"),
        ({"replicate": "optimizer.learning_rate=0.1"}, "give two values or more"),
        ({"replicate": "optimizer.learning_rate=0.1,"}, "'' is not a number"),
        ({"replicate": "optimizer.learning_rate=0.1,1e-1"}, "a value twice"),
        ({"replicate": "optimizer.learning_rate=0.1,nan"}, "nan"),
        ({"replicate": "optimizer.learning_rate=0.1,-1"}, "optimizer.learning_rate=-1"),
        ({"replicate": "optimizer.learning_rat=0.1,1"}, "did you mean"),
        ({"replicate": "train.batch_size=16,32"}, "train.batch_size cannot differ"),
        ({"replicate": "seed=1,2"}, "seed cannot differ"),
        ({"replicate": "model.resnet.dropout=0,0.1"}, "model.name=mlp does not read it"),
        ({"replicate": "optimizer.b1=0.8,0.9"}, "train.replicate='optimizer.b1=0.8,0.9': "),
        ({"replicate": "schedule.decay_rate=0.8,0.9"}, "train.replicate='schedule.decay_rate="),
        ({"replicate": "optimizer.momentum=0.8,0.9", "replicas": 3}, "leave train.replicas at 1"),
    ],
)
def test_what_cannot_be_is_refused(train, said):
    with pytest.raises(UsageError, match=said.replace("(", r"\(")):
        setup.build(config(**train), build_mesh("data=-1", jax.devices()[:1]))


def test_a_seed_beyond_the_last_one_is_refused():
    with pytest.raises(UsageError, match="seed=4294967296 must be"):
        variants(from_dict({"seed": 2**32 - 1, "train": {"steps": 1, "replicas": 2}}))


def test_a_model_of_a_sweep_that_diverges_leaves_the_others_alone():
    keys = {"replicate": "optimizer.learning_rate=0.05,1e30"}
    run, states, _ = several(**keys)
    assert states[-1].skips.total.tolist() == [0, STEPS - 1]
    own_states, _ = alone(run.variants[0])
    last = select(without_step(states[-1]), 0)
    close(last, without_step(own_states[-1]), rtol=2e-4, atol=2e-5)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(states[-1].params))
