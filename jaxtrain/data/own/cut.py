"""The validation part of data that comes without one."""

import hashlib
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

_BITS: Final = 64


def val_rows(ids: Iterable[bytes], labels: NDArray[np.integer], share: float) -> NDArray[np.bool_]:
    """Which examples are for validation; the others are for training.

    An example's side is a function of its id, so that it stays where it is when others come or go,
    in any order. There is one exception: of each class the id with the highest hash is for
    training in any case, or a small class could be left without any.

    Args:
        ids: one an example, as its path; equal ones go together.
        labels: integer `[n]`, classes.
        share: of each class, above 0 and below 1; what is cut differs from it by chance.

    Returns:
        bool `[n]`.
    """
    hashes = np.fromiter(map(_hash, ids), np.uint64, len(labels))
    chosen = hashes < np.uint64(share * 2**_BITS)
    order = np.lexsort((hashes, labels))
    last_of_class = np.append(np.diff(labels[order]) != 0, True)[: len(order)]
    for row in order[last_of_class]:
        if chosen[row]:  # all of the class are
            chosen[(labels == labels[row]) & (hashes == hashes[row])] = False
    return chosen


def _hash(identity: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(identity, digest_size=_BITS // 8).digest(), "little")
