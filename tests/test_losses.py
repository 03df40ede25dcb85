import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxtrain.errors import UsageError
from jaxtrain.losses import (
    main_label,
    parse_class_weights,
    soft_target,
    softmax_loss,
    training_loss,
)

LOGITS = jnp.array([[1.0, 2.0, 0.5], [0.0, -1.0, 3.0]])
LABELS = jnp.array([1, 0])


def test_label_smoothing_is_optaxs():
    target = optax.smooth_labels(jax.nn.one_hot(LABELS, 3), 0.3)
    expected = optax.softmax_cross_entropy(LOGITS, target)
    np.testing.assert_allclose(
        training_loss("softmax", 0.3, None)(LOGITS, LABELS), expected, rtol=1e-6
    )
    np.testing.assert_array_equal(
        training_loss("softmax", 0.0, None)(LOGITS, LABELS), softmax_loss(LOGITS, LABELS)
    )


def test_class_weights_are_factors_on_the_loss():
    plain = training_loss("softmax", 0.1, None)(LOGITS, LABELS)
    weighted = training_loss("softmax", 0.1, (2.0, 0.5, 7.0))(LOGITS, LABELS)
    np.testing.assert_allclose(weighted, plain * jnp.array([0.5, 2.0]), rtol=1e-6)


SHARES = np.array([[0.25, 0.0, 0.75], [1.0, 0.0, 0.0]], np.float32)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weights", [None, (2.0, 0.5, 7.0)])
def test_the_loss_of_shares_is_that_of_each_label_by_its_share(smoothing, weights):
    """Written out in float64 too."""
    loss = training_loss("softmax", smoothing, weights)
    found = loss(LOGITS, jnp.asarray(SHARES))
    assert (found.shape, found.dtype) == ((2,), jnp.float32)
    alone = np.stack([loss(LOGITS, jnp.full(2, k)) for k in range(3)], axis=1)
    np.testing.assert_allclose(found, (SHARES * alone).sum(axis=1), rtol=1e-6)
    logits = np.asarray(LOGITS, np.float64)
    surprise = np.log(np.exp(logits).sum(axis=1, keepdims=True)) - logits
    smooth = (1 - smoothing) * surprise + smoothing * surprise.mean(axis=1, keepdims=True)
    expected = (SHARES * (weights or (1, 1, 1)) * smooth).sum(axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_without_weights_it_is_the_cross_entropy_with_smoothed_shares():
    expected = optax.softmax_cross_entropy(LOGITS, optax.smooth_labels(jnp.asarray(SHARES), 0.3))
    found = training_loss("softmax", 0.3, None)(LOGITS, jnp.asarray(SHARES))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weights", [None, (2.0, 0.5, 7.0)])
@pytest.mark.parametrize("threshold", [None, 0.3])
def test_the_binary_loss_is_that_of_each_class_alone(smoothing, weights, threshold):
    """Written out in float64, for labels and for shares."""
    logits = np.asarray(LOGITS, np.float64)
    loss = training_loss("binary", smoothing, weights, threshold)
    for target, shares in ((jnp.asarray(SHARES), SHARES), (LABELS, np.eye(3)[LABELS])):
        found = loss(LOGITS, target)
        assert (found.shape, found.dtype) == ((2,), jnp.float32)
        smooth = (1 - smoothing) * shares + smoothing / 3
        smooth = smooth if threshold is None else (smooth > threshold).astype(float)
        right = 1 / (1 + np.exp(-logits))
        expected = -(smooth * np.log(right) + (1 - smooth) * np.log(1 - right)).mean(axis=1)
        if weights is not None:
            expected *= (shares * np.array(weights)).sum(axis=1)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_losses_that_do_not_fit_are_refused():
    with pytest.raises(UsageError, match=r"train.loss='hinge' is unknown: choose one of"):
        training_loss("hinge", 0.0, None)
    with pytest.raises(UsageError, match=r"train.binary_threshold=0.2 is set, but"):
        training_loss("softmax", 0.0, None, 0.2)


def test_soft_targets_are_two_labels_by_their_shares():
    label, other, share = jnp.array([2, 0, 1]), jnp.array([0, 1, 1]), jnp.array([0.75, 1.0, 0.3])
    found = soft_target(label, other, share, 3)
    np.testing.assert_allclose(found, [[0.25, 0, 0.75], [1, 0, 0], [0, 1, 0]], rtol=1e-6)
    assert found.dtype == jnp.float32
    assert main_label(found).tolist() == [2, 0, 1]
    assert main_label(soft_target(label, other, jnp.array([0.5, 0.4, 0.0]), 3)).tolist() == [
        0,
        1,
        1,
    ]
    assert main_label(label) is label


def test_balanced_weights_have_mean_1_over_the_examples():
    labels = np.array([0, 0, 0, 2])
    weights = parse_class_weights("balanced", labels, 4)
    assert weights == pytest.approx((1 / 3, 0.0, 1.0, 0.0))
    even = np.arange(30) % 3
    assert parse_class_weights("balanced", even, 3) == (1.0, 1.0, 1.0)
    skewed = np.repeat([0, 1, 2], [5, 1, 14])
    assert np.mean(np.array(parse_class_weights("balanced", skewed, 3))[skewed]) == pytest.approx(1)


@pytest.mark.parametrize("text", ["1,2,0.5", "(1, 2, 0.5)", "1.0,2.0,.5"])
def test_weights_as_numbers(text):
    assert parse_class_weights(text, np.array([0]), 3) == (1.0, 2.0, 0.5)
    assert parse_class_weights(None, np.array([0]), 3) is None


@pytest.mark.parametrize(
    "text",
    [
        "1,2",
        "1,2,3,4",
        "balance",
        "1,-1,1",
        "nan,1,1",
        "0,0,0",
        "",
        "((1,2,3",
        "1e300,1,1",
        "1e-9,0,0",
    ],
)
def test_weights_that_do_not_fit_are_refused(text):
    with pytest.raises(UsageError, match="must be balanced, or 3 numbers"):
        parse_class_weights(text, np.array([0]), 3)
