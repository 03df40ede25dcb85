"""Images and features of arrays, and what is neither."""

import numpy as np
import pytest

from jaxtrain.data.arrays.inputs import check_inputs
from jaxtrain.errors import UsageError

NOT_FINITE = np.ones((3000, 4))
NOT_FINITE[2500, 3] = np.nan


@pytest.mark.parametrize(
    "shape", [(2, 5, 4), (2, 5, 4, 1), (2, 5, 4, 3), (2, 5, 4, 7), (2, 3, 9, 3)]
)
def test_images_are_taken_as_they_are(shape):
    images = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    found = check_inputs(images, "x")
    assert np.shares_memory(found, images)
    assert found.shape == (*shape, 1)[:4]


@pytest.mark.parametrize("dtype", ["f2", "f4", ">f4", "f8", "i1", "u1", "i8", "?"])
def test_features_are_any_numbers(dtype):
    features = np.ones((3, 2), dtype)
    assert check_inputs(features, "x") is features


def test_features_may_be_large():
    features = np.array([[1e30, -1e30]])
    assert check_inputs(features, "x") is features


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros(5), "x is float64 [5]; features are [N, D]: of one feature, save x.reshape(-1, "),
        (np.zeros(()), "x is float64 []; images are uint8 [N, H, W, C], or [N, H, W] if grey, "),
        (np.zeros((1,) * 5, np.uint8), "images are uint8 [N, H, W, C]"),
        (np.array([["a", "b"]]), "x is <U1 [1, 2]; images are"),
        (np.zeros((2, 2), complex), "features numbers [N, D]"),
        (np.zeros((0, 5)), "x is float64 [0, 5], which holds no examples"),
        (np.zeros((5, 0)), "which holds no examples"),
        (np.zeros((2, 0, 4), np.uint8), "which holds no examples"),
        (NOT_FINITE, "x holds nan in row 2500, feature 3; features must be finite float32 numbers"),
        (np.array([[1.0], [1e39]]), "x holds 1e+39 in row 1, feature 0; features"),
        (
            np.array([[1.0, 2.0], [3.0, -1.1e30]]),
            "x holds -1.1e+30 in row 1, feature 1; features are numbers up to 1e+30, as sums of "
            "larger ones overflow float32: divide the feature, or leave such rows out",
        ),
        (np.array([[3e38]], "f4"), "x holds 3e+38 in row 0, feature 0; features are numbers up"),
        (np.array([[-np.inf]], "f2"), "in its place, as by np.clip(x, -1e6, 1e6), or leave such"),
        (np.array([[np.nan, np.inf]]), "in its place, as by np.where(np.isnan(x), 0, x), or leave"),
        (
            np.array([[[0, np.nan]]]),
            "images are uint8: save np.nan_to_num(x, posinf=0, neginf=0), and then bytes of it, or",
        ),
        (
            np.array([0, 1.0]).reshape(1, 2, 1),
            "x is float64 [1, 2, 1], from 0 to 1; images are uint8: save (255 * x).round().astype("
            "'uint8'), or, to train on them as features, x.reshape(len(x), -1)",
        ),
        (
            np.array([0, 255]).reshape(1, 2, 1),
            "from 0 to 255; images are uint8: save x.astype('uin",
        ),
        (
            np.array([0, 255.0]).reshape(1, 2, 1, 1),
            "images are uint8: save x.round().astype('uint8",
        ),
        (
            np.array([-1, 1.0]).reshape(1, 2, 1, 1),
            "save (255 * (x - x.min()) / (x.max() - x.min())",
        ),
        (np.array([False, True]).reshape(1, 2, 1), "save (255 * x).round().astype('uint8')"),
        (
            np.array([[[0, 1]]]),
            "from 0 to 1; images are uint8: save (255 * x).round().astype('uint",
        ),
        (
            np.zeros((2, 3, 8, 9), np.uint8),
            "x is uint8 [2, 3, 8, 9], whose channels seem to come first; images are [N, H, W, C]: "
            "save x.transpose(0, 2, 3, 1)",
        ),
    ],
)
def test_what_is_neither_is_said(array, said):
    with pytest.raises(UsageError) as raised:
        check_inputs(array, "x")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
