import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain import models, state
from jaxtrain.config.schema import MlpConfig, ModelConfig
from jaxtrain.errors import UsageError
from jaxtrain.models.mlp import ACTIVATIONS

KEY = jax.random.key(0)
IMAGES = jnp.asarray(np.random.RandomState(0).rand(6, 4, 3, 1), jnp.float32)
ROWS = jnp.arange(6)


def build(**keys):
    return models.build(ModelConfig(**keys), 10)


def logits(model, image, row, key=None):
    params, collections = model.init(KEY, IMAGES[:1])
    return model.apply(params, collections, image, row=row, key=key)[0]


def test_the_default_mlp_on_mnist_has_its_parameters():
    variables = state.abstract_model(build(), (28, 28, 1), 10)
    shapes = jax.tree.map(lambda leaf: leaf.shape, variables["params"])
    assert shapes == {
        "hidden_0": {"kernel": (784, 512), "bias": (512,)},
        "head": {"kernel": (512, 10), "bias": (10,)},
    }


@pytest.mark.parametrize("sizes", [(), (7,), (5, 4, 3)])
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_any_sizes_and_activation(sizes, activation):
    model = build(mlp=MlpConfig(hidden_sizes=sizes, activation=activation))
    found = logits(model, IMAGES, ROWS)
    assert found.shape == (6, 10)
    assert found.dtype == jnp.float32
    assert np.isfinite(found).all()


def test_bfloat16_computes_in_bfloat16_and_keeps_parameters_in_float32():
    model = build(dtype="bfloat16")
    params, collections = model.init(KEY, IMAGES[:1])
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    found = model.apply(params, collections, IMAGES, row=ROWS, key=None)[0]
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, found.astype(jnp.bfloat16).astype(jnp.float32))


class TestDropout:
    model = build(mlp=MlpConfig(hidden_sizes=(64,), dropout=0.4))

    def test_is_off_in_evaluation(self):
        plain = build(mlp=MlpConfig(hidden_sizes=(64,)))
        np.testing.assert_array_equal(logits(self.model, IMAGES, ROWS), logits(plain, IMAGES, ROWS))

    def test_a_rows_mask_depends_on_its_global_row_alone(self):
        same = jnp.broadcast_to(IMAGES[:1], IMAGES.shape)
        whole = logits(self.model, same, ROWS, KEY)
        assert len(np.unique(np.asarray(whole), axis=0)) == 6
        part = logits(self.model, same[:2], jnp.array([4, 1]), KEY)
        np.testing.assert_allclose(part, whole[jnp.array([4, 1])], rtol=1e-6)

    def test_another_key_drops_other_units(self):
        other = logits(self.model, IMAGES, ROWS, jax.random.key(1))
        assert not np.allclose(logits(self.model, IMAGES, ROWS, KEY), other)

    def test_drops_the_share_and_keeps_the_mean(self):
        layer = models.layers.RowDropout(0.4)
        ones = jnp.ones((500, 100))
        dropped = layer.apply({}, ones, row=jnp.arange(500), train=True, rngs={"dropout": KEY})
        assert float((dropped == 0).mean()) == pytest.approx(0.4, abs=0.01)
        np.testing.assert_allclose(np.unique(dropped), [0, 1 / 0.6], rtol=1e-6)


USER_MODULES = """
import flax.linen as nn
import jax.numpy as jnp
from flax import nnx

class Linen(nn.Module):
    num_classes: int
    width: int = 3

    @nn.compact
    def __call__(self, image, train):
        x = nn.Dense(self.width)(image.reshape(image.shape[0], -1))
        x = nn.BatchNorm(use_running_average=not train)(x)
        return nn.Dense(self.num_classes)(nn.Dropout(0.5, deterministic=not train)(x))

class Nnx(nnx.Module):
    def __init__(self, num_classes, width=3, *, rngs):
        self.inner = nnx.Linear(12, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.outer = nnx.Linear(width, num_classes, rngs=rngs)

    def __call__(self, image, train):
        x = self.norm(self.inner(image.reshape(image.shape[0], -1)), use_running_average=not train)
        return self.outer(self.dropout(x, deterministic=not train))

class Plain(nn.Module):
    @nn.compact
    def __call__(self, image):
        return nn.Dense(10)(image.reshape(image.shape[0], -1))

class Broken(nn.Module):
    num_classes: int

    @nn.compact
    def __call__(self, image):
        raise RuntimeError("this never works")

not_a_class = 3
"""


@pytest.fixture
def own_modules(tmp_path, monkeypatch):
    (tmp_path / "own_modules.py").write_text(USER_MODULES)
    (tmp_path / "broken_module.py").write_text("import nothing_like_this")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own_modules")
class TestOwnModules:
    @pytest.mark.parametrize("name", ["Linen", "Nnx"])
    def test_trains_and_evaluates(self, name):
        model = build(name=f"own_modules:{name}", args={"width": 5})
        params, collections = model.init(KEY, IMAGES[:1])
        widths = {leaf.shape[-1] for leaf in jax.tree.leaves(params)}
        assert widths == {5, 10}
        assert all(type(leaf) is type(IMAGES) for leaf in jax.tree.leaves(params))
        evaluated, same = model.apply(params, collections, IMAGES, row=ROWS, key=None)
        assert evaluated.shape == (6, 10)
        assert same is collections
        trained, updated = model.apply(params, collections, IMAGES, row=ROWS, key=KEY)
        assert jax.tree.structure(updated) == jax.tree.structure(collections)
        assert not np.allclose(trained, evaluated)
        moved = [
            not np.array_equal(a, b)
            for a, b in zip(jax.tree.leaves(updated), jax.tree.leaves(collections), strict=True)
        ]
        assert moved
        assert all(moved)

    def test_a_module_without_train_works(self):
        assert logits(build(name="own_modules:Plain"), IMAGES, ROWS, KEY).shape == (6, 10)

    @pytest.mark.parametrize(
        ("keys", "said"),
        [
            ({"name": "no_such_module:Net"}, "no_such_module cannot be imported"),
            ({"name": "broken_module:Net"}, "ModuleNotFoundError"),
            ({"name": "own_modules:Missing"}, "no Linen or NNX module class 'Missing'"),
            ({"name": "own_modules:not_a_class"}, "no Linen or NNX module class"),
            ({"name": "own_modules:"}, "no Linen or NNX module class ''"),
            ({"name": "own_modules:Linen", "args": {"depth": 2}}, "does not fit own_modules:Linen"),
            ({"name": "own_modules:Nnx", "args": {"depth": 2}}, "does not fit own_modules:Nnx"),
            ({"name": "mpl"}, "did you mean 'mlp'"),
            ({"name": "mlp", "args": {"width": 2}}, "mlp does not read it"),
            ({"mlp": MlpConfig(activation="swoosh")}, "did you mean 'swish'"),
        ],
    )
    def test_what_does_not_fit_is_said(self, keys, said):
        with pytest.raises(UsageError) as caught:
            build(**keys)
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("name", "said"),
        [("Broken", "this never works"), ("Plain", "the data has 7 classes")],
    )
    def test_a_model_that_does_not_fit_the_data_is_said(self, name, said):
        model = models.build(ModelConfig(name=f"own_modules:{name}"), 7)
        with pytest.raises(UsageError, match=r"^model\.name") as caught:
            state.abstract_model(model, (4, 3, 1), 7)
        assert said in str(caught.value)
