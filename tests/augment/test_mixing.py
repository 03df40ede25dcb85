"""Mixup and cutmix against their definitions, whatever the devices."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import data_mesh
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from scipy.special import betainc

from jaxtrain import augment
from jaxtrain.augment.draws import uniform
from jaxtrain.augment.mixing import Cutmix, Mixing, Mixup, MixupOrCutmix, partners, symmetric_beta
from jaxtrain.errors import UsageError
from jaxtrain.keys import step_key

EVERY = ["mixup(0.4)", "cutmix", "mixup_or_cutmix(mixup=0.4)"]
SHAPE = (11, 8, 3)


@functools.cache
def compiled(text: str) -> Any:
    return jax.jit(augment.build(text).mix)


def mixed(
    text: str, image: Any, row: Any = None, mask: Any = None, *, seed: int = 3, step: int = 5
) -> tuple[np.ndarray, np.ndarray]:
    """The images and their own shares."""
    row = jnp.arange(len(image), dtype=jnp.int32) if row is None else row
    mask = jnp.ones(len(image), bool) if mask is None else mask
    found, share = compiled(text)(step_key(seed, step, "augment"), image, row, mask)
    return np.asarray(found), np.asarray(share)


def images(batch: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.RandomState(1).rand(batch, *shape).astype(np.float32)


def draws(count: int, columns: int = 6) -> jax.Array:
    return uniform(step_key(0, 1, "augment"), jnp.arange(count, dtype=jnp.int32), columns)


def weights(mixing: Mixing, drawn: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    weight, share = jax.jit(lambda drawn: mixing.weights(drawn, shape))(drawn)
    return np.asarray(weight), np.asarray(share)


@pytest.mark.parametrize("alpha", [0.001, 0.1, 0.2, 0.5, 1.0, 3.0, 100.0])
def test_shares_are_those_of_the_beta_distribution(alpha):
    count = 40_000
    found = np.asarray(symmetric_beta(alpha, *draws(count, 2).T))
    for at in (1e-5, 1e-3, 0.05, 0.2, 0.4, 0.45, 0.5, 0.55, 0.6, 0.9, 0.999):
        expected = betainc(alpha, alpha, at)
        deviation = np.sqrt(expected * (1 - expected) / count)
        assert abs((found <= at).mean() - expected) < 4 * deviation + 1e-9
    assert found.mean() == pytest.approx(0.5, abs=0.01)
    assert found.var() == pytest.approx(0.25 / (2 * alpha + 1), rel=0.02)


@given(
    st.floats(0.001, 100),
    st.integers(0, 2**24 - 1) | st.sampled_from([0, 2**24 - 1]),
    st.integers(0, 2**24 - 1) | st.sampled_from([0, 2**23, 2**24 - 1]),
)
def test_a_share_and_the_rest_are_1_at_the_limits_of_the_draws_too(alpha, first, second):
    made = symmetric_beta(
        alpha, *(jnp.array([at * 2.0**-24], jnp.float32) for at in (first, second))
    )
    (share,) = np.asarray(made)
    assert 0 <= share <= 1
    assert share * 2**24 % 1 == 0
    assert share + (np.float32(1) - share) == 1


def test_mixup_adds_neighbours_by_their_shares():
    image = images(64)
    found, share = mixed("mixup(0.4)", image)
    weight = share[:, None, None, None]
    partner = image.reshape(32, 2, *SHAPE)[:, ::-1].reshape(image.shape)
    np.testing.assert_allclose(found, weight * image + (1 - weight) * partner, atol=1e-6)
    np.testing.assert_array_equal(share[::2], share[1::2])
    assert len(set(share.tolist())) == 32
    assert (share < 0.5).any()
    assert (share > 0.5).any()


def test_cutmix_pastes_one_rectangle_whose_area_is_the_share():
    count, height, width = 400, 24, 16
    image = np.broadcast_to(
        np.arange(count, dtype=np.float32)[:, None, None, None] / 512, (count, height, width, 1)
    )
    found, share = mixed("cutmix", image)
    heights, widths, tops, inner = [], [], [], 0
    for row in range(count):
        own, pasted = (found[row, ..., 0] == image[at, 0, 0, 0] for at in (row, row ^ 1))
        assert (own | pasted).all()
        assert share[row] == pytest.approx(1 - pasted.sum() / (height * width), abs=1e-6)
        y, x = np.nonzero(pasted)
        if not len(y):
            continue
        tall, wide = np.ptp(y) + 1, np.ptp(x) + 1
        assert pasted.sum() == tall * wide
        tops.append(y.min())
        if y.min() and x.min() and y.max() < height - 1 and x.max() < width - 1:
            inner += 1
            heights.append(tall)
            widths.append(wide)
    assert inner > 30
    # Whole ones have the image's shape, up to rounding down.
    assert (np.abs(np.array(heights) / height - np.array(widths) / width) < 1 / 16).all()
    assert {0, 1, height // 2} < set(tops)
    np.testing.assert_array_equal(share[::2], share[1::2])


def test_the_rectangle_is_the_papers():
    """The code of its authors, which is for even sizes, from the same draws."""
    height, width = 32, 20
    drawn = np.array(draws(300))
    weight, share = weights(Cutmix(alpha=1.0), drawn, (height, width, 3))
    left_over = np.asarray(symmetric_beta(1.0, drawn[:, 1], drawn[:, 2]))
    compared = 0
    for row in range(300):
        ratio = np.sqrt(1 - left_over[row])
        cut = np.array([int(height * ratio), int(width * ratio)])
        if (cut % 2).any():
            continue
        compared += 1
        centre = (drawn[row, 3:5] * [height, width]).astype(int)
        (top, left), (bottom, right) = (
            np.clip(at, 0, [height, width]) for at in (centre - cut // 2, centre + cut // 2)
        )
        expected = np.ones((height, width, 1), np.float32)
        expected[top:bottom, left:right] = 0
        np.testing.assert_array_equal(weight[row], expected)
        assert share[row] == pytest.approx(expected.mean(), abs=1e-6)
    assert compared > 50


def test_one_or_the_other():
    drawn = draws(1000)
    weight, share = weights(MixupOrCutmix(mixup=0.4, cutmix=2.0, switch=0.3), drawn, SHAPE)
    added, added_share = weights(Mixup(0.4), drawn, SHAPE)
    pasted, pasted_share = weights(Cutmix(2.0), drawn, SHAPE)
    cut = np.asarray(drawn[:, 5] < 0.3)
    assert abs(cut.mean() - 0.3) < 0.05
    np.testing.assert_array_equal(weight[cut], pasted[cut])
    np.testing.assert_array_equal(weight[~cut], np.broadcast_to(added, weight.shape)[~cut])
    np.testing.assert_array_equal(share, np.where(cut, pasted_share, added_share))
    for switch, other in ((0.0, added_share), (1.0, pasted_share)):
        _, alone = weights(MixupOrCutmix(mixup=0.4, cutmix=2.0, switch=switch), drawn, SHAPE)
        np.testing.assert_array_equal(alone, other)


@pytest.mark.parametrize("name", ["mixup", "cutmix", "mixup_or_cutmix"])
def test_pairs_that_are_not_mixed_stay_as_they_are_bit_for_bit(name):
    image = images(600, (5, 4, 1))
    found, share = mixed(f"{name}(p=0.3)", image)
    whole = (found == image).all(axis=(1, 2, 3))
    assert 0.2 < 1 - whole.mean() < 0.4
    np.testing.assert_array_equal(whole[::2], whole[1::2])
    assert (share[whole] == 1).sum() >= 0.6 * len(image)


@pytest.mark.parametrize(
    "text",
    [
        "mixup(alpha=0)",
        "cutmix(0)",
        "mixup(p=0)",
        "cutmix(p=0)",
        "mixup_or_cutmix(p=0)",
        "flip",
        "",
    ],
)
def test_nothing_to_mix_costs_nothing_and_asks_for_no_pairs(text):
    made = augment.build(text)
    image, row = images(3), jnp.arange(3, dtype=jnp.int32)
    found, share = made.mix(step_key(0, 1, "augment"), image, row, row >= 0)
    assert found is image
    assert share is None
    assert made.together == 1
    assert augment.build("flip|mixup").together == 2


@pytest.mark.parametrize("text", EVERY)
def test_nothing_is_mixed_with_a_masked_row(text):
    image = images(8)
    mask = jnp.array([1, 1, 1, 0, 0, 1, 0, 0], bool)
    found, share = mixed(text, image, mask=mask)
    whole, whole_share = mixed(text, image)
    np.testing.assert_array_equal(found[[2, 5]], image[[2, 5]])
    assert share[2] == share[5] == 1
    np.testing.assert_array_equal(found[:2], whole[:2])
    np.testing.assert_array_equal(share[:2], whole_share[:2])


@pytest.mark.parametrize("text", EVERY)
def test_a_pair_keeps_its_values_together(text):
    """Each example counts once."""
    image = images(32)
    found, share = mixed(text, image)
    before, after = (each.reshape(16, 2, *SHAPE).sum(axis=1) for each in (image, found))
    np.testing.assert_allclose(after, before, atol=1e-6)
    assert (share < 1).sum() > 16


@pytest.mark.parametrize("text", EVERY)
def test_shape_dtype_and_range_are_kept(text):
    for image in (images(64), images(64).round(), np.ones((64, *SHAPE), np.float32)):
        found, share = mixed(text, image)
        assert (found.shape, found.dtype) == (image.shape, np.float32)
        assert (share.shape, share.dtype) == ((64,), np.float32)
        assert found.min() >= image.min()
        assert found.max() <= 1
        assert share.min() >= 0
        assert share.max() <= 1


@pytest.mark.parametrize("text", EVERY)
def test_a_pair_depends_on_itself_its_rows_the_step_and_the_seed(text):
    image = images(8)
    whole, share = mixed(text, image)
    order = np.array([6, 7, 2, 3])
    part, part_share = mixed(text, image[order], jnp.asarray(order, jnp.int32))
    np.testing.assert_array_equal(part, whole[order])
    np.testing.assert_array_equal(part_share, share[order])
    other = [mixed(text, image, step=6), mixed(text, image, seed=4)]
    other.append(mixed(text, image, jnp.arange(2**31 - 8, 2**31 - 1 + 1, dtype=jnp.int32)))
    assert all((each_share != share).mean() > 0.7 for _, each_share in other)


def test_the_same_on_one_and_on_eight_devices():
    text = EVERY[-1]
    image, row = images(16), jnp.arange(16, dtype=jnp.int32)
    mesh = data_mesh(jax.devices()[:8])
    apart = NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
    arguments = jax.device_put((image, row, row >= 0), apart)
    key = step_key(3, 5, "augment")
    spread = jax.jit(augment.build(text).mix, out_shardings=apart).lower(key, *arguments).compile()
    for collective in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
        assert collective not in spread.as_text()
    for one, other in zip(spread(key, *arguments), mixed(text, image), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-7)


def test_the_same_in_pmap_and_under_vmap_over_seeds():
    text = EVERY[-1]
    image, row = images(8), jnp.arange(8, dtype=jnp.int32)
    mix = augment.build(text).mix
    parts = (each.reshape(4, 2, *each.shape[1:]) for each in (image, row, row >= 0))
    mapped = jax.pmap(mix, in_axes=(None, 0, 0, 0), devices=jax.devices()[:4])
    found = mapped(step_key(3, 5, "augment"), *parts)
    for one, other in zip(found, mixed(text, image), strict=True):
        np.testing.assert_allclose(one.reshape(other.shape), other, atol=1e-7)
    seeds = jnp.array([3, 4], jnp.uint32)

    @jax.jit
    @jax.vmap
    def of_seed(seed: jax.Array) -> Any:
        return mix(step_key(seed, 5, "augment"), image, row, row >= 0)

    both = of_seed(seeds)
    for at, seed in enumerate((3, 4)):
        for one, other in zip(both, mixed(text, image, seed=seed), strict=True):
            np.testing.assert_allclose(one[at], other, atol=1e-7)


def test_partners_are_neighbours():
    np.testing.assert_array_equal(partners(jnp.arange(6)), [1, 0, 3, 2, 5, 4])


def test_operations_before_it_change_the_images_that_it_mixes():
    image, row = images(8), jnp.arange(8, dtype=jnp.int32)
    key, both = step_key(3, 5, "augment"), augment.build("flip|mixup")
    flipped = augment.build("flip")(key, image, row)
    np.testing.assert_array_equal(both(key, image, row), flipped)
    assert both.mixing == augment.build("mixup").mixing
    # Its place makes another draw.
    (_, one), (_, other) = (
        augment.build(text).mix(key, image, row, row >= 0) for text in ("mixup", "flip|mixup")
    )
    assert (one != other).any()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mixup|flip", "data.augment='mixup|flip': mixup mixes finished images; put it last"),
        (
            "cutmix|mixup",
            "cutmix mixes finished images; put it last, and only one of mixup, cutmix",
        ),
        ("mixup|mixup", "mixup mixes finished images; put it last, and only one of"),
        ("mixup(-0.1)", "mixup(-0.1): alpha must be 0, or between 0.001 and 100"),
        ("mixup(1e-4)", "alpha must be 0, or between 0.001 and 100"),
        ("cutmix(101)", "alpha must be 0, or between 0.001 and 100"),
        ("cutmix(p=1.1)", "p must be between 0 and 1"),
        ("mixup_or_cutmix(mixup=0)", "mixup must be between 0.001 and 100"),
        ("mixup_or_cutmix(cutmix=-1)", "cutmix must be between 0.001 and 100"),
        ("mixup_or_cutmix(switch=2)", "switch must be between 0 and 1"),
        ("mixup(beta=1)", "has no argument 'beta'; write mixup(alpha: float = 0.2, p: float"),
        ("mixupp", "did you mean 'mixup'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(text, message):
    with pytest.raises(UsageError) as caught:
        augment.build(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_features_can_be_added_up_but_not_cut():
    augment.build("mixup").check((5,))
    for text, name in (("cutmix", "cutmix"), ("flip|mixup", "flip"), ("pad_crop(2)", "pad_crop")):
        with pytest.raises(UsageError) as caught:
            augment.build(text).check((5,))
        said = f"data.augment: {name}: changes images, but the examples are 5 features each"
        assert str(caught.value).startswith(said)
    features = 10 * images(16, (5,)) - 3
    found, share = mixed("mixup(0.4)", features)
    expected = share[:, None] * features + (1 - share[:, None]) * np.asarray(partners(features))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
