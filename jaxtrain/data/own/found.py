"""What a folder or a list of image files says."""

import dataclasses
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

# What people call the splits, in lower case.
SPLIT_NAMES: Final = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}


@dataclasses.dataclass(frozen=True)
class Listed:
    """The image files of a split.

    Attributes:
        paths: from the root of them all, or absolute.
        labels: the class of each, by its name; as a number, in digits, where `Found.numbered`.
    """

    paths: list[str]
    labels: list[str]


@dataclasses.dataclass(frozen=True)
class Found:
    """Image files with labels.

    Attributes:
        root: the folder that their paths count from.
        splits: the files of each split, sorted by `identity`, or in the order of a list.
        numbered: whether all labels are whole numbers.
        origin: where the labels come from, for messages.
        notes: what a person should know, a line each.
    """

    root: Path
    splits: Mapping[str, Listed]
    numbered: bool
    origin: str
    notes: Sequence[str]


def normal(text: str) -> str:
    """A name with its accents composed (NFC): macOS writes them in another way than Linux."""
    return unicodedata.normalize("NFC", text)


def identity(path: str) -> bytes:
    """What tells a file from others, the same on every machine: its path, as bytes."""
    return normal(path).encode(errors="surrogateescape")
