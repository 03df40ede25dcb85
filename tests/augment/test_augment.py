"""The whole: what an image becomes depends on the seed, the step, the text and its row alone."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import data_mesh
from jax.sharding import NamedSharding, PartitionSpec

from jaxtrain import augment
from jaxtrain.errors import UsageError
from jaxtrain.keys import step_key

GREY = (
    "flip|flip(direction='vertical')|pad_crop(2)|pad_crop(1, mode='reflect')|cutout(3)"
    "|random_erasing(p=0.7)|affine(rotate=30, translate=0.2, scale=0.3, shear=10)"
    "|brightness(0.4)|contrast(0.4)|noise(0.1)"
)
COLOUR = f"{GREY}|saturation(0.5)"
# Smooth in what it is given, so that a last bit matters no more than that.
SMOOTH = "hue(0.2)|greyscale(p=0.5)|elastic(alpha=4, sigma=2)|blur(sigma=(0.5, 1))"
# What differs in how it is computed.
SHORT = "pad_crop(2)|affine(rotate=30, scale=0.3)|random_erasing(p=0.7)|contrast(0.4)|noise(0.1)"
NOTHING = (
    "flip(p=0)|pad_crop(0)|pad_crop(0, mode='reflect')|cutout(0)|random_erasing(p=0)|affine"
    "|affine(fill=1)|brightness(0)|contrast(0)|saturation(0)|noise(0)|hue(0)|greyscale(p=0)"
    "|blur(p=0)|blur(sigma=(0, 0))|elastic(alpha=0)|randaugment(layers=0)"
)


def images(batch: int, shape: tuple[int, ...]) -> jax.Array:
    random = np.random.RandomState(1)
    return jnp.asarray(random.rand(batch, *shape).astype(np.float32))


def rows(*numbers: int) -> jax.Array:
    return jnp.array(numbers, jnp.int32)


@functools.cache
def compiled(text: str) -> Callable[..., jax.Array]:
    return jax.jit(augment.build(text))


def changed(text: str, image: Any, row: Any, *, seed: int = 3, step: int = 5) -> np.ndarray:
    return np.asarray(compiled(text)(step_key(seed, step, "augment"), image, row))


def test_nothing_to_do_costs_nothing():
    image = images(2, (4, 4, 1))
    assert augment.build("")(step_key(0, 1, "augment"), image, rows(0, 1)) is image


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (GREY, (11, 8, 1)),
        (COLOUR, (6, 9, 3)),
        (GREY, (7, 7, 4)),
        (f"{SMOOTH}|randaugment|trivialaugment", (6, 9, 3)),
        ("elastic(alpha=4, sigma=2)|blur|randaugment|trivialaugment", (11, 8, 1)),
        ("elastic(alpha=4, sigma=2)|blur", (7, 7, 4)),
    ],
)
def test_all_operations_keep_shape_dtype_and_range(text, shape):
    augment.build(text).check(shape)
    found = changed(text, images(5, shape), rows(*range(5)))
    assert found.shape == (5, *shape)
    assert found.dtype == np.float32
    assert found.min() >= 0
    assert found.max() <= 1


@pytest.mark.parametrize("name", augment.OPERATIONS)
def test_every_operation_changes_something(name):
    texts = {
        "pad_crop": "pad_crop(2)",
        "cutout": "cutout(4)",
        "random_erasing": "random_erasing(p=1)",
        "affine": "affine(rotate=20)",
        **{op: f"{op}(0.3)" for op in ("brightness", "contrast", "saturation", "noise", "hue")},
        "greyscale": "greyscale(p=0.5)",
    }
    image = images(8, (8, 8, 3))
    found = changed(texts.get(name, name), image, rows(*range(8)))
    assert (found != image).any()
    assert (found != found[:1]).any()


@pytest.mark.parametrize("shape", [(5, 8, 3), (9, 4, 3)])
def test_no_magnitude_changes_no_bit(shape):
    image = images(6, shape)
    np.testing.assert_array_equal(changed(NOTHING, image, rows(*range(6))), image)


def test_a_rows_result_does_not_depend_on_the_rest_of_the_batch():
    image, row = images(8, (11, 8, 3)), jnp.arange(8, dtype=jnp.int32)
    whole = changed(SHORT, image, row)
    order = np.array([6, 1, 3, 0])
    part = changed(SHORT, image[order], row[order])
    np.testing.assert_allclose(part, whole[order], atol=2e-6)
    other = image.at[:4].set(0.0)  # as masked rows are
    np.testing.assert_array_equal(changed(SHORT, other, row)[4:], whole[4:])


def test_equal_images_in_other_rows_steps_or_seeds_become_different():
    image = jnp.broadcast_to(images(1, (8, 8, 3)), (4, 8, 8, 3))
    made = [
        changed("noise(0.1)", image, rows(0, 1, 2, 2**31 - 1)),
        changed("noise(0.1)", image, rows(0, 1, 2, 2**31 - 1), step=6),
        changed("noise(0.1)", image, rows(0, 1, 2, 2**31 - 1), seed=4),
    ]
    assert len({one.tobytes() for batch in made for one in batch}) == 12


def test_an_operations_place_makes_another_draw():
    image = images(64, (1, 2, 1))
    row = jnp.arange(64, dtype=jnp.int32)
    twice = changed("flip|flip", image, row)
    back = (twice == image).all(axis=(1, 2, 3)).mean()
    assert 0.3 < back < 0.7


@pytest.mark.parametrize("text", [COLOUR, SMOOTH])
def test_the_same_on_one_and_on_eight_devices(text):
    image, row = images(16, (11, 8, 3)), jnp.arange(16, dtype=jnp.int32)
    mesh = data_mesh(jax.devices()[:8])
    rows_apart = NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
    key = step_key(3, 5, "augment")
    arguments = (key, *jax.device_put((image, row), rows_apart))
    spread = jax.jit(augment.build(text), out_shardings=rows_apart).lower(*arguments).compile()
    for collective in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
        assert collective not in spread.as_text()
    np.testing.assert_allclose(spread(*arguments), changed(text, image, row), atol=2e-6)


def test_the_same_in_pmap():
    image, row = images(8, (11, 8, 3)), jnp.arange(8, dtype=jnp.int32)
    parts = jax.pmap(augment.build(SHORT), in_axes=(None, 0, 0), devices=jax.devices()[:4])(
        step_key(3, 5, "augment"), image.reshape(4, 2, 11, 8, 3), row.reshape(4, 2)
    )
    np.testing.assert_allclose(parts.reshape(image.shape), changed(SHORT, image, row), atol=2e-6)


@pytest.mark.parametrize("text", [SHORT, SMOOTH, "randaugment|trivialaugment"])
def test_the_same_under_vmap_over_seeds(text):
    image, row = images(8, (11, 8, 3)), jnp.arange(8, dtype=jnp.int32)
    augmented = augment.build(text)

    def of_seed(seed: jax.Array) -> jax.Array:
        return augmented(step_key(seed, 5, "augment"), image, row)

    found = jax.jit(jax.vmap(of_seed))(jnp.array([3, 4], jnp.uint32))
    for seed, each in zip((3, 4), found, strict=True):
        np.testing.assert_allclose(each, changed(text, image, row, seed=seed), atol=2e-6)


def test_operations_are_compiled_apart_on_a_cpu():
    """Together they take fifteen times as long; see `apart`."""
    arguments = (step_key(0, 1, "augment"), images(4, (8, 8, 3)), rows(0, 1, 2, 3))
    program = compiled("pad_crop(2)|noise(0.1)|affine(10)").lower(*arguments).compile().as_text()
    assert program.count(" conditional(") == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flop", "data.augment='flop' is unknown: .* did you mean 'flip'"),
        ("flip(1.5)", r"data.augment: flip\(1.5\): p must be between 0 and 1"),
        ("flip(direction='up')", "direction must be horizontal or vertical"),
        ("pad_crop(-1)", "pad must be 0 or more"),
        ("pad_crop(1, mode='wrap')", "mode must be zero or reflect"),
        ("pad_crop", "misses 'pad'; write pad_crop"),
        ("cutout(-2)", "size must be 0 or more"),
        ("cutout(2, fill=128)", "fill must be between 0 and 1"),
        ("random_erasing(p=-0.1)", "p must be between 0 and 1"),
        ("random_erasing(scale=(0.3, 0.1))", "scale must be two shares between 0 and 1"),
        ("random_erasing(ratio=(0, 1))", "ratio must be two numbers from 0.01 to 100"),
        ("random_erasing(fill=2)", "fill must be between 0 and 1"),
        ("affine(rotate=-5)", "rotate must be between 0 and 180"),
        ("affine(translate=2)", "translate must be between 0 and 1"),
        ("affine(scale=1.1)", "scale must be between 0 and 0.9"),
        ("affine(shear=80)", "shear must be between 0 and 60"),
        ("brightness(-0.1)", "amount must be between 0 and 100"),
        ("noise(-0.1)", "sigma must be between 0 and 100"),
        ("hue(0.6)", "amount must be between 0 and 0.5"),
        ("greyscale(2)", "p must be between 0 and 1"),
        ("blur((2, 1))", "sigma must be two numbers from 0 to 10, the smaller one first"),
        ("blur((0, 11))", "sigma must be two numbers from 0 to 10"),
        ("blur(p=-1)", "p must be between 0 and 1"),
        ("elastic(-1)", "alpha must be between 0 and 10000"),
        ("elastic(sigma=-1)", "sigma must be between 0 and 100"),
        ("elastic(fill=2)", "fill must be between 0 and 1"),
        ("randaugment(-1)", "layers must be between 0 and 10"),
        ("randaugment(magnitude=31)", "magnitude must be between 0 and 30"),
        ("randaugment(p=0)", "p must be above 0, and 1 at most"),
        ("randaugment(fill=128)", "fill must be between 0 and 1"),
        ("trivialaugment(128)", "fill must be between 0 and 1"),
        ("grayscale", "did you mean 'greyscale'"),
    ],
)
def test_bad_values_are_refused_in_one_line(text, message):
    with pytest.raises(UsageError, match=message) as caught:
        augment.build(text)
    assert "\n" not in str(caught.value)
    assert "data.augment" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shape", "message"),
    [
        ("flip|saturation(0.1)", (8, 8, 1), "saturation: needs 3 channels, but the images have 1"),
        ("saturation(0.1)", (8, 8, 4), "saturation: needs 3 channels, but the images have 4"),
        ("hue(0.1)", (8, 8, 1), "hue: needs 3 channels, but the images have 1"),
        ("greyscale", (8, 8, 4), "greyscale: needs 3 channels, but the images have 4"),
        ("randaugment", (8, 8, 4), "randaugment: needs 1 or 3 channels, but the images have 4"),
        ("trivialaugment", (8, 8, 2), "trivialaugment: needs 1 or 3 channels"),
        ("pad_crop(6)", (8, 6, 1), "pad_crop: pad must be below the smaller side, 6"),
        ("cutout(7)", (8, 6, 1), "cutout: size must be at most the smaller side, 6"),
    ],
)
def test_images_that_do_not_fit_are_refused(text, shape, message):
    with pytest.raises(UsageError, match=f"data.augment: {message}"):
        augment.build(text).check(shape)


def test_images_that_just_fit_are_taken():
    augment.build("pad_crop(5)|cutout(6)|saturation(0)").check((8, 6, 3))
