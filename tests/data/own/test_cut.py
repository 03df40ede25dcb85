"""The validation part is a function of the examples' ids."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.data.own.cut import val_rows

IDS = st.lists(st.binary(max_size=6), min_size=1, max_size=60, unique=True)


def sides(ids: list[bytes], share: float, classes: int = 3) -> dict[bytes, bool]:
    labels = np.array([sum(one) % classes for one in ids])
    return dict(zip(ids, val_rows(ids, labels, share).tolist(), strict=True))


@given(IDS, st.randoms())
def test_the_order_of_the_examples_does_not_matter(ids: list[bytes], random: object) -> None:
    shuffled = list(ids)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert sides(ids, 0.3) == sides(shuffled, 0.3)


@given(IDS, IDS)
def test_an_example_stays_where_it_is_when_others_come(old: list[bytes], new: list[bytes]) -> None:
    """But for the one that a class must have for training, which may go to validation."""
    before = sides(old, 0.3)
    after = sides([*old, *(one for one in new if one not in before)], 0.3)
    moved = [one for one, side in before.items() if after[one] != side]
    assert all(after[one] for one in moved)
    classes = [sum(one) % 3 for one in moved]
    assert len(classes) == len(set(classes))


@given(IDS, st.floats(0.01, 0.99))
def test_every_class_is_trained_on(ids: list[bytes], share: float) -> None:
    chosen = sides(ids, share)
    trained = {sum(one) % 3 for one, is_val in chosen.items() if not is_val}
    assert trained == {sum(one) % 3 for one in ids}


def test_the_share_is_about_right_in_each_class() -> None:
    ids = [f"{name}/{number}.jpg".encode() for name in "ab" for number in range(10_000)]
    labels = np.repeat([0, 1], 10_000)
    chosen = val_rows(ids, labels, 0.2)
    assert abs(chosen[labels == 0].mean() - 0.2) < 0.02
    assert abs(chosen[labels == 1].mean() - 0.2) < 0.02


def test_the_cut_is_the_same_for_ever() -> None:
    """A run goes on, and runs are compared, over releases of jaxtrain."""
    ids = [f"cat/{number}.jpg".encode() for number in range(40)]
    chosen = np.flatnonzero(val_rows(ids, np.zeros(40, int), 0.2))
    assert chosen.tolist() == [0, 7, 9, 17, 18, 21, 22, 31, 33, 35]


def test_the_same_file_twice_is_on_one_side() -> None:
    ids = [b"a/1", b"a/1", b"a/2", b"a/2"]
    for share in (0.01, 0.5, 0.99):
        chosen = val_rows(ids, np.zeros(4, int), share)
        assert chosen[0] == chosen[1]
        assert chosen[2] == chosen[3]
        assert not chosen.all()
