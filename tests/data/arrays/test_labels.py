"""Labels in every form that arrays have them in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.data.arrays.labels import parse_class_names, parse_labels
from jaxtrain.errors import UsageError

numbers = st.lists(st.integers(0, 9), min_size=1, max_size=30)


@given(
    numbers,
    st.sampled_from(["i1", "u1", "i4", ">i4", "i8", "u8", "f2", "f4", ">f8"]),
    st.booleans(),
)
def test_numbers_of_any_dtype(values, dtype, as_column):
    array = np.array(values, dtype)
    found = parse_labels(array.reshape(-1, 1) if as_column else array, "y")
    assert found.values.dtype == np.int32
    assert found.values.tolist() == values
    assert not found.are_names
    assert found.columns is None


@given(numbers, st.sampled_from(["u1", "i8", "?", "f4"]))
def test_a_column_a_class(values, dtype):
    found = parse_labels(np.eye(10)[values].astype(dtype), "y")
    assert found.values.tolist() == values
    assert found.columns == 10


@given(st.lists(st.text(min_size=1).filter(lambda text: "\0" not in text), min_size=1))
def test_names_come_back(names):
    import unicodedata  # noqa: PLC0415

    for array in (np.array(names), np.char.encode(np.array(names), "utf-8")):
        found = parse_labels(array, "y")
        assert found.are_names
        assert found.values.tolist() == [unicodedata.normalize("NFC", name) for name in names]


def test_names_are_the_same_however_their_accents_are_written():
    assert parse_labels(np.array(["\u00e9", "e\u0301"]), "y").values.tolist() == ["\u00e9"] * 2
    assert parse_labels(np.array([["a"], ["b"]]), "y").values.tolist() == ["a", "b"]


def test_yes_and_no_are_1_and_0():
    assert parse_labels(np.array([True, False]), "y").values.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros((3, 4, 5)), "y is float64 [3, 4, 5]; labels are [N], a number or a name an "),
        (np.zeros(()), "y is float64 []; labels are [N]"),
        (np.zeros(3, complex), "y is complex128 [3]; labels are"),
        (np.zeros(3, "M8[s]"), "y is datetime64[s] [3]; labels are"),
        (np.zeros(3, [("a", "i4")]), "labels are [N]"),
        (np.zeros(0, int), "y holds no labels"),
        (np.array([1, 0.5, 2, 0.25]), "y holds 0.5 at index 1, which is no whole number, as are 2"),
        (np.array([1, np.nan]), "y holds nan at index 1, which is no whole number"),
        (np.array([1, np.inf]), "y holds inf at index 1"),
        (np.array([0, 2**31]), "y holds 2147483648 at index 1, but a class number is below 2,147,"),
        (np.array([0, 1e300]), "y holds 1e+300 at index 1, but a class number is below"),
        (np.array([2**64 - 1], "u8"), "y holds 18446744073709551615 at index 0, but"),
        (np.array([[0, 1], [1, 1]]), "y has 2 columns, but 1 of 2 rows, first 1, are not a single"),
        (np.array([[0.3, 0.7]]), "y has 2 columns, but 1 of 1 rows, first 0, are not a single 1"),
        (np.array([[0, 0]]), "are not a single 1 among zeros; give one class an example, as by y."),
        (np.array([["a", "b"]]), "y is text [1, 2]; names of classes are [N]"),
        (np.array(["a", ""]), "y holds an empty name at index 1; give every example a class"),
        (np.array([b"\xff"]), "y holds bytes that are no UTF-8; save y.astype(str)"),
    ],
)
def test_what_is_no_label_is_said(array, said):
    with pytest.raises(UsageError) as raised:
        parse_labels(array, "y")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_class_names():
    assert parse_class_names(np.array(["b", "a"]), "names") == ("b", "a")
    assert parse_class_names(np.array([b"b", b"a"]), "names") == ("b", "a")
    for array in (np.arange(3), np.array([["a"]]), np.array([], str), np.array("a")):
        with pytest.raises(UsageError, match=r"names is .*; names of classes are texts \[K\]"):
            parse_class_names(array, "names")
