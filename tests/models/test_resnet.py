import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import data_mesh
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrain import models
from jaxtrain.config.schema import ModelConfig, ResnetConfig
from jaxtrain.errors import UsageError
from jaxtrain.models import layers, resnet
from jaxtrain.parallel.mesh import over_rows, replicated

KEY = jax.random.key(0)
RANDOM = np.random.RandomState(0)
IMAGES = RANDOM.standard_normal((8, 6, 5, 3)).astype(np.float32)
LABELS = RANDOM.randint(0, 10, 8)
ROWS = np.arange(8)
ALL = np.ones(8, bool)
SOME = np.array([1, 0, 1, 1, 0, 0, 1, 1], bool)


def build(name="resnet8", num_classes=10, dtype="float32", args=(), **keys):
    config = ModelConfig(name=name, dtype=dtype, resnet=ResnetConfig(**keys), args=dict(args))
    return models.build(config, num_classes)


def tiny(dtype="float32", **changes):
    """A network that compiles soon: the large stem and two blocks, one with a shortcut."""
    attributes = {
        "stage_sizes": (1, 1),
        "channels": (4, 6),
        "bottleneck": False,
        "pooled_stem": True,
        "groups": None,
        "zero_init": False,
        "stochastic_depth": 0.0,
        "dropout": 0.0,
        "num_classes": 10,
        "dtype": dtype,
    }
    module = resnet.ResNet(**attributes | changes)
    return models.Model(module, jnp.dtype(dtype), frozenset({"row", "mask", "train"}))


def variables_of(model, image_shape):
    """Some parameters and collections, without the time that compiling `init` takes."""
    random = np.random.RandomState(1)

    def fill(leaf):
        if leaf.ndim == 1:
            return jnp.asarray(random.uniform(0.5, 1.5, leaf.shape), leaf.dtype)
        scale = math.sqrt(2 / math.prod(leaf.shape[:-1]))
        return jnp.asarray(random.standard_normal(leaf.shape) * scale, leaf.dtype)

    image = jax.ShapeDtypeStruct((1, *image_shape), model.dtype)
    return jax.tree.map(fill, jax.eval_shape(model.init, KEY, image))


def shapes(model, image_shape):
    """Shapes of the parameters by name, without computing."""
    params, _ = jax.eval_shape(
        model.init, KEY, jax.ShapeDtypeStruct((1, *image_shape), model.dtype)
    )
    return {
        "/".join(key.key for key in path): leaf.shape
        for path, leaf in jax.tree.leaves_with_path(params)
    }


def count(model, image_shape):
    return sum(math.prod(shape) for shape in shapes(model, image_shape).values())


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("resnet152", 60_192_808),
        ("resnet200", 64_673_832),
    ],
)
def test_parameter_counts_on_imagenet(name, parameters):
    assert count(build(name, 1000), (224, 224, 3)) == parameters


@pytest.mark.parametrize(
    ("name", "parameters"),
    # Those of the paper, whose shortcuts have no parameters, and 2752 in shortcuts.
    [("resnet8", 75_290 + 2752), ("resnet20", 269_722 + 2752), ("resnet56", 853_018 + 2752)],
)
def test_parameter_counts_on_cifar(name, parameters):
    assert count(build(name), (32, 32, 3)) == parameters


def test_names_of_the_parameters():
    found = shapes(build("resnet50", stem="cifar", width=1 / 16), (8, 8, 1))
    norm = {"scale", "bias"}
    block = {f"conv{i}/kernel" for i in (1, 2, 3)} | {
        f"norm{i}/{s}" for i in (1, 2, 3) for s in norm
    }
    assert {name for name in found if not name.startswith("stage")} == {
        "stem_conv/kernel",
        *(f"stem_norm/{s}" for s in norm),
        "head/kernel",
        "head/bias",
    }
    for stage, size in enumerate((3, 4, 6, 3), start=1):
        for index in range(size):
            prefix = f"stage{stage}_block{index}/"
            names = {name.removeprefix(prefix) for name in found if name.startswith(prefix)}
            shortcut = {"shortcut_conv/kernel", *(f"shortcut_norm/{s}" for s in norm)}
            assert names == block | (set() if index else shortcut)
    assert found["stem_conv/kernel"] == (3, 3, 1, 4)
    assert found["stage2_block0/conv2/kernel"] == (3, 3, 8, 8)
    assert found["stage2_block0/shortcut_conv/kernel"] == (1, 1, 16, 32)
    assert found["head/kernel"] == (128, 10)


def sides(model, image_shape):
    """Height and width of the outputs of the stem and of each stage's last block."""
    found = {}

    def record(call, args, kwargs, context):
        outputs = call(*args, **kwargs)
        if context.method_name == "__call__" and outputs.ndim == 4:
            found[context.module.name.partition("_")[0]] = outputs.shape[1:3]
        return outputs

    with nn.intercept_methods(record):
        shapes(model, image_shape)
    return [found[name] for name in ("stem", *sorted(name for name in found if "stage" in name))]


@pytest.mark.parametrize("name", ["resnet8", "resnet18", "resnet50"])
@pytest.mark.parametrize(
    ("image_shape", "stem", "wanted"),
    [
        ((28, 28, 1), "cifar", [28, 28, 14, 7, 4]),
        ((28, 28, 1), "imagenet", [14, 7, 4, 2, 1]),
        ((37, 37, 4), "cifar", [37, 37, 19, 10, 5]),
        ((37, 37, 4), "imagenet", [19, 10, 5, 3, 2]),
        ((1, 1, 3), "cifar", [1, 1, 1, 1, 1]),
        ((1, 1, 3), "imagenet", [1, 1, 1, 1, 1]),
    ],
)
def test_any_image_and_stem(name, image_shape, stem, wanted):
    found = sides(build(name, stem=stem), image_shape)
    assert found == [(side, side) for side in wanted[: len(found)]]


@pytest.mark.parametrize("name", sorted(resnet.ARCHITECTURES))
def test_each_family_has_its_stem_and_halves_from_stage_to_stage(name):
    small = name in {"resnet8", "resnet20", "resnet56"}
    wanted = [(32, 64), (32, 64), (16, 32), (8, 16)]
    if not small:
        wanted = [(16, 32), (8, 16), (4, 8), (2, 4), (1, 2)]
    assert sides(build(name), (32, 64, 3)) == wanted


@pytest.mark.parametrize(
    ("width", "channels"), [(2, (32, 64, 128)), (0.3, (5, 10, 19)), (1e-6, (1, 1, 1))]
)
def test_width_scales_every_layer(width, channels):
    found = shapes(build(width=width), (8, 8, 3))
    assert found["stem_conv/kernel"][-1] == channels[0]
    for stage, size in enumerate(channels, start=1):
        assert found[f"stage{stage}_block0/conv1/kernel"][-1] == size
        assert found[f"stage{stage}_block0/conv2/kernel"][-1] == size


class TestStart:
    params = build("resnet8").init(KEY, jnp.zeros((1, 8, 8, 3)))[0]

    def test_last_scale_of_a_block_is_0_if_asked(self):
        other = build("resnet8", zero_init=False).init(KEY, jnp.zeros((1, 8, 8, 3)))[0]
        for name in [name for name in self.params if name.startswith("stage")]:
            assert (self.params[name]["norm1"]["scale"] == 1).all()
            assert (self.params[name]["norm2"]["scale"] == 0).all()
            assert (other[name]["norm2"]["scale"] == 1).all()
        assert (self.params["stage2_block0"]["shortcut_norm"]["scale"] == 1).all()

    def test_kernels_have_the_deviations_of_torchvision(self):
        for kernel, outputs in [
            (self.params["stage2_block0"]["shortcut_conv"]["kernel"], 32),
            (self.params["stage3_block0"]["conv2"]["kernel"], 9 * 64),
        ]:
            assert float(kernel.std()) == pytest.approx(math.sqrt(2 / outputs), rel=0.05)
        head = self.params["head"]
        assert float(abs(head["kernel"]).max()) == pytest.approx(1 / 8, rel=0.05)
        assert (head["bias"] == 0).all()


def update(model, variables, batch, mask):
    """Loss, collections after it, and gradients; `batch` is images, labels and rows."""
    images, labels, rows = batch
    params, collections = variables

    def loss_fn(params):
        logits, after = model.apply(params, collections, images, row=rows, key=KEY, mask=mask)
        loss = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)[:, 0]
        return jnp.where(mask, loss, 0).sum() / jnp.maximum(mask.sum(), 1), (after, logits)

    (loss, (after, logits)), gradients = jax.value_and_grad(loss_fn, has_aux=True)(params)
    return loss, after, gradients, logits


def assert_close(found, wanted, rtol=2e-4):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol, atol=2e-6), found, wanted)


class TestMaskedRows:
    model = tiny(stochastic_depth=0.5, dropout=0.3)
    variables = variables_of(model, IMAGES.shape[1:])
    run = staticmethod(jax.jit(functools.partial(update, model, variables)))
    batch = (np.where(SOME[:, None, None, None], IMAGES, np.float32(np.nan)), LABELS, ROWS)

    def test_change_nothing_whatever_they_hold(self):
        *found, logits = self.run(self.batch, SOME)
        *wanted, wanted_logits = self.run((IMAGES[SOME], LABELS[SOME], ROWS[SOME]), ALL[SOME])
        assert_close((found, logits[SOME]), (wanted, wanted_logits))

    def test_eight_devices_agree_with_one_though_some_have_no_other_rows(self):
        mesh = data_mesh(jax.devices())
        rows = over_rows(mesh)
        spread = jax.jit(self.run, in_shardings=(rows, rows), out_shardings=replicated(mesh))
        assert_close(spread(self.batch, SOME), self.run(self.batch, SOME))

    def test_a_batch_of_them_alone_moves_nothing(self):
        loss, after, gradients, logits = self.run(self.batch, ~ALL)
        assert loss == 0
        assert np.isfinite(logits).all()
        jax.tree.map(np.testing.assert_array_equal, after, self.variables[1])
        assert all((leaf == 0).all() for leaf in jax.tree.leaves(gradients))

    def test_no_mask_means_that_all_rows_count(self):
        apply = jax.jit(functools.partial(self.model.apply, *self.variables, row=ROWS, key=KEY))
        assert_close(apply(IMAGES), apply(IMAGES, mask=ALL))

    def test_evaluation_is_of_each_row_alone(self):
        apply = functools.partial(self.model.apply, *self.variables, key=None)
        logits, same = apply(self.batch[0], row=ROWS, mask=SOME)
        assert same is self.variables[1]
        assert_close(logits[SOME], apply(IMAGES[SOME], row=ROWS[SOME])[0])


def computed_in(model, variables):
    """Dtypes of what the layers give."""
    found = []

    def record(call, args, kwargs, context):
        outputs = call(*args, **kwargs)
        found.append(outputs.dtype)
        return outputs

    with nn.intercept_methods(record):
        jax.eval_shape(functools.partial(model.apply, *variables, IMAGES, row=ROWS, key=KEY))
    return found


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("groups", [None, 2])
def test_half_precision_computes_in_it_and_keeps_float32(dtype, groups):
    model = tiny(dtype, groups=groups)
    variables = variables_of(model, IMAGES.shape[1:])
    found = jax.jit(functools.partial(update, model))(variables, (IMAGES, LABELS, ROWS), ALL)
    assert {leaf.dtype for leaf in jax.tree.leaves((variables, found))} == {jnp.dtype("float32")}
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
    assert set(computed_in(model, variables)) == {jnp.dtype(dtype)}
    logits = found[-1]
    full = jax.jit(functools.partial(tiny(groups=groups).apply, row=ROWS, key=KEY))
    wanted = full(*variables, IMAGES)[0]
    assert not np.array_equal(logits, wanted)
    np.testing.assert_allclose(logits, wanted, atol=32 * jnp.finfo(dtype).eps)


class TestStochasticDepth:
    def test_drops_whole_branches_and_keeps_the_mean(self):
        ones = jnp.ones((4000, 2, 1, 3))
        layer = layers.StochasticDepth(0.3)
        found = np.asarray(
            layer.apply({}, ones, row=jnp.arange(4000), train=True, rngs={"dropout": KEY})
        )
        assert (found == found[:, :1, :, :1]).all()
        np.testing.assert_allclose(np.unique(found), [0, 1 / 0.7], rtol=1e-6)
        assert found.mean() == pytest.approx(1, abs=0.03)

    def test_is_off_in_evaluation(self):
        layer = layers.StochasticDepth(0.3)
        found = layer.apply({}, IMAGES, row=ROWS, train=False)
        np.testing.assert_array_equal(found, IMAGES)

    @settings(max_examples=20, deadline=None)
    @given(st.permutations(range(8)))
    def test_depends_on_the_global_row_alone(self, order):
        layer = layers.StochasticDepth(0.5)
        apply = functools.partial(layer.apply, {}, train=True, rngs={"dropout": KEY})
        order = np.array(order)
        whole = apply(IMAGES, row=ROWS)
        np.testing.assert_array_equal(apply(IMAGES[order], row=order), whole[order])

    def test_grows_linearly_over_the_blocks(self):
        found = {}

        def record(call, args, kwargs, context):
            if isinstance(context.module, resnet.Block):
                found[context.module.name] = context.module.drop
            return call(*args, **kwargs)

        with nn.intercept_methods(record):
            shapes(build("resnet18", stochastic_depth=0.4), (32, 32, 3))
        wanted = [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4]
        np.testing.assert_allclose(list(found.values()), wanted)

    def test_each_block_and_step_drops_others(self):
        model = tiny(stochastic_depth=0.9, groups=2, pooled_stem=False)
        params, none = variables_of(model, IMAGES.shape[1:])
        same = np.broadcast_to(IMAGES[:1], (64, *IMAGES.shape[1:]))
        apply = jax.jit(functools.partial(model.apply, params, none, same, row=np.arange(64)))
        first = np.asarray(apply(key=KEY)[0])
        assert len(np.unique(first.round(5), axis=0)) == 4
        assert not np.allclose(first, apply(key=jax.random.key(1))[0])


class TestRefusals:
    @pytest.mark.parametrize(
        ("keys", "fix"),
        [
            ({"name": "resnet8"}, "model.resnet.groups=16"),
            ({"name": "resnet50", "width": 0.75}, "model.resnet.groups=24"),
            ({"name": "resnet18", "groups": 7}, "model.resnet.groups=4"),
            ({"name": "resnet18", "width": 0.3}, "model.resnet.groups=1"),
        ],
    )
    def test_groups_that_do_not_divide_name_those_that_do(self, keys, fix):
        with pytest.raises(UsageError) as caught:
            build(norm="group", **keys)
        message = str(caught.value)
        assert message.startswith(f"model.resnet.groups={keys.get('groups', 32)} does not divide")
        assert f"model.resnet.width={keys.get('width', 1)}" in message
        assert message.endswith(f"set {fix}")
        groups = int(fix.rpartition("=")[2])
        model = build(norm="group", **keys | {"groups": groups})
        assert shapes(model, (8, 8, 3))

    def test_groups_without_group_normalisation(self):
        with pytest.raises(UsageError, match=r"groups=8 is set, .*norm=batch does not read it"):
            build(groups=8)

    def test_arguments_of_own_modules(self):
        with pytest.raises(UsageError, match=r"resnet18 does not read it; set model\.resnet\.\*"):
            build("resnet18", args={"width": 2})

    def test_a_name_that_is_nearly_one(self):
        with pytest.raises(UsageError, match="did you mean 'resnet50'"):
            build("resnet-50")
