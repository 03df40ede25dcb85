"""Labels as arrays have them: numbers, names, or one column a class."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxtrain.data.own.found import normal
from jaxtrain.errors import UsageError

_LIMITS = np.iinfo(np.int32)


class Labels(NamedTuple):
    """The labels of a split.

    Attributes:
        values: int32 `[N]`, numbers of classes; or text `[N]`, their names.
        columns: of labels with one column a class, how many there are.
    """

    values: NDArray[Any]
    columns: int | None = None

    @property
    def are_names(self) -> bool:
        """Whether they are names, not numbers."""
        return self.values.dtype.kind == "U"


def parse_labels(array: NDArray[Any], where: str) -> Labels:
    """Labels of any usual form.

    Args:
        array: integers, booleans, whole floats or texts `[N]` or `[N, 1]`; or `[N, K]` with a 1 in
            the column of the class and zeros beside it.
        where: what it is, for messages.

    Raises:
        UsageError: it is none of these, or holds a number that no class can have.
    """
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim not in (1, 2) or array.dtype.kind not in "biufUS":
        raise UsageError(
            f"{where} is {array.dtype} {list(array.shape)}; labels are [N], a number or a name an "
            "example"
        )
    if not len(array):
        raise UsageError(f"{where} holds no labels")
    if array.dtype.kind in "US":
        return Labels(_names(array, where))
    if array.ndim == 2:
        return Labels(_columns(array, where), array.shape[1])
    return Labels(_numbers(array, where))


def parse_class_names(array: NDArray[Any], where: str) -> tuple[str, ...]:
    """Names of classes, in the order of their numbers.

    Raises:
        UsageError: it is no list of texts.
    """
    if array.ndim != 1 or array.dtype.kind not in "US" or not len(array):
        raise UsageError(
            f"{where} is {array.dtype} {list(array.shape)}; names of classes are texts [K]"
        )
    return tuple(_names(array, where).tolist())


def _numbers(array: NDArray[Any], where: str) -> NDArray[np.int32]:
    if array.dtype.kind == "f":
        array = array.astype(np.float64)
        bad = np.flatnonzero(~np.isfinite(array) | (array != np.floor(array)))
        if bad.size:
            raise UsageError(
                f"{where} holds {array[bad[0]]} at index {bad[0]}, which is no whole number, as "
                f"are {bad.size:,} of its {len(array):,}; labels are classes: cut what is to be "
                "predicted into ranges, as by np.digitize"
            )
    bad = np.flatnonzero((array < _LIMITS.min) | (array > _LIMITS.max))
    if bad.size:
        raise UsageError(
            f"{where} holds {array[bad[0]]} at index {bad[0]}, but a class number is below "
            f"{_LIMITS.max:,}; number the classes from 0, as by np.unique(y, return_inverse=True)"
        )
    return array.astype(np.int32)


def _columns(array: NDArray[Any], where: str) -> NDArray[np.int32]:
    ones = array == 1
    bad = np.flatnonzero(~(ones | (array == 0)).all(1) | (ones.sum(1) != 1))
    if bad.size:
        raise UsageError(
            f"{where} has {array.shape[1]} columns, but {bad.size:,} of {len(array):,} rows, first "
            f"{bad[0]}, are not a single 1 among zeros; give one class an example, as by "
            "y.argmax(1)"
        )
    return ones.argmax(1).astype(np.int32)


def _names(array: NDArray[Any], where: str) -> NDArray[np.str_]:
    if array.ndim != 1:
        raise UsageError(f"{where} is text {list(array.shape)}; names of classes are [N]")
    unique, inverse = np.unique(array, return_inverse=True)
    try:
        decoded = unique if unique.dtype.kind == "U" else np.char.decode(unique, "utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{where} holds bytes that are no UTF-8; save y.astype(str)") from error
    texts = np.array([normal(text) for text in decoded.tolist()])
    if "" in texts.tolist():
        row = int(np.flatnonzero(inverse == texts.tolist().index(""))[0])
        raise UsageError(f"{where} holds an empty name at index {row}; give every example a class")
    named: NDArray[np.str_] = texts[inverse]
    return named
