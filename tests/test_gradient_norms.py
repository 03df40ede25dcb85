"""The norms of per-example gradients are those of `jax.grad`, one example at a time."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import IMAGE_SHAPE, data_mesh, split
from steps import Plain

from jaxtrain import models, state
from jaxtrain.config.schema import DataConfig, MlpConfig, ModelConfig
from jaxtrain.data import ArraySplit
from jaxtrain.evaluation import Evaluator
from jaxtrain.gradient_norms import norms_rows
from jaxtrain.losses import softmax_loss
from jaxtrain.normalise import Normalise
from jaxtrain.parallel.layout import parameter_shardings
from jaxtrain.parallel.mesh import build_mesh, on_mesh, with_shardings
from jaxtrain.tasks import CLASSIFICATION

EXAMPLES = split(21)
NORMALISE = Normalise((0.4,), (0.3,))
assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)


@functools.cache
def network(name: str, dtype: str = "float32") -> tuple[models.Model, dict]:
    """A model, and variables whose running statistics are not those of a new one."""
    config = ModelConfig(
        name="resnet8" if name == "resnet8" else "mlp",
        dtype=dtype,
        mlp=MlpConfig(hidden_sizes=(16,), dropout=0.5),
    )
    model = models.build(config, 10)
    if name == "plain":
        model = models.Model(Plain(), jnp.dtype(dtype), frozenset({"train"}))
    shape = (7,) if name == "features" else IMAGE_SHAPE
    random = np.random.RandomState(3)
    variables = jax.eval_shape(lambda: state.init_model(model, jnp.uint32(0), shape))

    def fill(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        values = random.uniform(0.5, 1.5, leaf.shape) if leaf.ndim == 1 else None
        values = random.normal(0, 0.1, leaf.shape) if values is None else values
        return jnp.asarray(values, leaf.dtype)

    return model, jax.tree.map(fill, variables)


def examples(name: str) -> ArraySplit:
    if name != "features":
        return EXAMPLES
    values = np.random.RandomState(1).normal(size=(21, 7)).astype(np.float32)
    return ArraySplit("test", values, EXAMPLES.labels, "memory")


def one_by_one(name: str, *, flip: bool = False) -> np.ndarray:
    """The norms by `jax.grad` of each example's loss alone, in float64 on the host."""
    model, variables = network(name)
    of = examples(name)

    @jax.jit
    def gradient(image: jax.Array, label: jax.Array) -> dict:
        def loss(params: dict) -> jax.Array:
            def apply(image: jax.Array) -> jax.Array:
                row = jnp.zeros(1, jnp.int32)
                given = NORMALISE(image)
                return model.apply(params, variables["collections"], given, row=row, key=None)[0]

            logits = (apply(image) + apply(image[:, :, ::-1])) / 2 if flip else apply(image)
            return softmax_loss(logits, label)[0]

        return jax.grad(loss)(variables["params"])

    norms = []
    for image, label in zip(of.images, of.labels, strict=True):
        leaves = jax.tree.leaves(gradient(image[None], label[None]))
        norms.append(np.sqrt(sum((np.float64(leaf) ** 2).sum() for leaf in leaves)))
    return np.array(norms)


def norms(
    name: str,
    *,
    devices: int = 1,
    mesh: str = "data=-1",
    rules: str = "replicated",
    indices: np.ndarray | None = None,
    batch_size: int = 8,
    cache: str = "device",
    flip: bool = False,
) -> np.ndarray:
    model, variables = network(name)
    built = build_mesh(mesh, jax.devices()[:devices])
    abstract = jax.eval_shape(lambda: variables)
    lies = parameter_shardings(rules, abstract["params"], built)
    params = with_shardings(abstract["params"], lies)
    abstract = on_mesh(abstract, built) | {"params": params}
    evaluator = Evaluator(
        model=model,
        normalise=NORMALISE,
        task=CLASSIFICATION,
        split=examples(name),
        config=DataConfig(cache=cache),
        batch_size=batch_size,
        mesh=built,
        variables=abstract,
        flip_average=flip,
    )
    placed = jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), variables, abstract)
    ticks: list[tuple[int, int]] = []
    indices = np.arange(21) if indices is None else indices
    found = evaluator.gradient_norms(placed, indices, lambda *tick: ticks.append(tick))
    assert ticks == [(number, len(ticks)) for number in range(1, len(ticks) + 1)]
    assert (found.dtype, found.shape) == (np.float32, indices.shape)
    return found


@pytest.mark.parametrize("name", ["mlp", "resnet8", "plain", "features"])
def test_norms_are_those_of_one_example_at_a_time(name):
    """Running statistics, no dropout, and none of it depends on the other examples."""
    assert_close(norms(name), one_by_one(name))


@pytest.mark.parametrize("room", [1, 2, 5])
@pytest.mark.parametrize("devices", [1, 8])
def test_no_batch_and_no_number_of_devices_changes_them(monkeypatch, devices, room):
    monkeypatch.setattr("jaxtrain.gradient_norms._MOST_ROWS", room)
    expected = one_by_one("mlp")
    for cache, batch_size in (("device", 1), ("memory", 16)):
        found = norms("mlp", devices=devices, cache=cache, batch_size=batch_size)
        assert_close(found, expected)


def test_convolutions_on_eight_devices_and_on_one_agree():
    assert_close(norms("resnet8", devices=8), one_by_one("resnet8"))


@pytest.mark.parametrize("mesh", ["fsdp=4", "data=2,model=2"])
def test_divided_parameters_change_nothing(mesh):
    rules = "fsdp" if "fsdp" in mesh else "kernel=-,model; .*=replicated"
    found = norms("mlp", devices=4, mesh=mesh, rules=rules)
    assert_close(found, one_by_one("mlp"))


def test_some_examples_in_any_order():
    indices = np.array([20, 3, 0, 17, 4])
    for cache in ("device", "memory"):
        found = norms("mlp", devices=2, indices=indices, cache=cache)
        assert_close(found, one_by_one("mlp")[indices])


def test_of_the_mean_with_the_mirror_image():
    found = norms("mlp", flip=True)
    assert_close(found, one_by_one("mlp", flip=True))
    assert not np.allclose(found, one_by_one("mlp"), rtol=1e-2)


@pytest.mark.parametrize("devices", [1, 8])
def test_batches_fit_the_memory_and_are_no_larger_than_needed(devices):
    mesh = data_mesh(jax.devices()[:devices])

    def rows(megabytes: float, examples: int) -> int:
        params = {"kernel": jax.ShapeDtypeStruct((int(megabytes * 2**18),), np.float32)}
        return norms_rows(params, examples, mesh) // devices

    assert rows(100, 10**6) == 1  # as of a ResNet-50
    assert rows(1000, 10**6) == 1  # nothing smaller can be done
    assert rows(10, 10**6) == 12
    assert rows(0.001, 10**6) == 256
    assert rows(0.001, 10 * devices) == 10
    assert rows(0.001, 1) == 1
    assert norms_rows({}, 3, mesh) == -(-3 // devices) * devices


def test_a_model_in_bfloat16_has_norms_near_those_in_float32():
    model, variables = network("mlp", "bfloat16")
    assert isinstance(model.module, nn.Module)
    mesh = data_mesh(jax.devices()[:1])
    evaluator = Evaluator(
        model=model,
        normalise=NORMALISE,
        task=CLASSIFICATION,
        split=EXAMPLES,
        config=DataConfig(),
        batch_size=8,
        mesh=mesh,
        variables=on_mesh(jax.eval_shape(lambda: variables), mesh),
    )
    found = evaluator.gradient_norms(variables, np.arange(21), lambda *_: None)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, one_by_one("mlp"), rtol=0.1)
