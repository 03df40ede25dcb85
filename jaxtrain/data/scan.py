"""All examples read before training: those that cannot be, and those that are there twice."""

import collections
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np

from jaxtrain.config.schema import DataConfig
from jaxtrain.data.dataset import split_names
from jaxtrain.data.own import FileSource
from jaxtrain.data.own.known import DIGEST_BYTES
from jaxtrain.data.own.scan import DECODE
from jaxtrain.data.sources import Source, open_source
from jaxtrain.data.split import Progress, RawSplit, Split
from jaxtrain.data.threads import workers
from jaxtrain.errors import DataError

_CHUNK: Final = 16


class Example(NamedTuple):
    """An example that was read.

    Attributes:
        split: the split's name.
        place: its file, or where it is in the split.
        label: its class, by name or number.
        error: why it cannot be read, in one line; None: it can be.
        digest: hash of its content; empty if it cannot be read.
    """

    split: str
    place: str
    label: str
    error: str | None
    digest: bytes


@dataclasses.dataclass(frozen=True)
class Scan:
    """What came of reading all examples.

    Attributes:
        counts: examples of each split.
        bad: examples that cannot be read.
        across: groups of examples of the same content that are in more than one split.
        contradicting: groups of the others, of the same content but more than one class.
        repeated: how many examples have the content of another one of their split and class.
    """

    counts: Mapping[str, int]
    bad: tuple[Example, ...]
    across: tuple[tuple[Example, ...], ...]
    contradicting: tuple[tuple[Example, ...], ...]
    repeated: int


def scan(config: DataConfig, progress: Progress) -> Scan:
    """Reads and decodes every example: of files of all splits there are, else of those of a run.

    Files are equal where their bytes are, other examples where their values are.

    Args:
        config: the `data` section.
        progress: told how many are done.

    Raises:
        UsageError: the data cannot be opened.
    """
    source = open_source(config, progress)
    if isinstance(source, FileSource):
        examples = [Example(*found) for name in source.split_names for found in source.scan(name)]
    else:
        names = dict.fromkeys(split_names(config, source))
        examples = [each for name in names for each in _read(source, name, progress)]
    return _summed(examples)


def _summed(examples: Iterable[Example]) -> Scan:
    counts: collections.Counter[str] = collections.Counter()
    bad = []
    groups: dict[bytes, list[Example]] = collections.defaultdict(list)
    for example in examples:
        counts[example.split] += 1
        if example.error is not None:
            bad.append(example)
        else:
            groups[example.digest].append(example)
    across, contradicting, repeated = [], [], 0
    for group in groups.values():
        if len({each.split for each in group}) > 1:
            across.append(tuple(group))
        elif len({each.label for each in group}) > 1:
            contradicting.append(tuple(group))
        else:
            repeated += len(group) - 1
    return Scan(counts, tuple(bad), tuple(across), tuple(contradicting), repeated)


def _read(source: Source, name: str, progress: Progress) -> list[Example]:
    """The examples of a split, in its order."""
    split = source.open(name)
    names = source.class_names

    def one(index: int) -> Example:
        label = int(split.labels[index])
        known = names is not None and 0 <= label < len(names)
        said = names[label] if names is not None and known else str(label)
        place = f"{name}[{index}]"
        try:
            return Example(name, place, said, None, _digest(split, index))
        except DataError as error:
            return Example(name, place, said, str(error), b"")

    def some(start: int) -> list[Example]:
        return [one(index) for index in range(start, min(start + _CHUNK, split.size))]

    examples: list[Example] = []
    with workers() as pool:
        for chunk in pool.map(some, range(0, split.size, _CHUNK)):
            examples += chunk
            progress(DECODE, len(examples), split.size)
    return examples


def _digest(split: Split | RawSplit, index: int) -> bytes:
    if isinstance(split, RawSplit):
        values = split.decode(index)
    else:
        values = split.read(np.array([index]))[0]
    digest = hashlib.blake2b(str(values.shape).encode(), digest_size=DIGEST_BYTES)
    digest.update(np.ascontiguousarray(values).data)
    return digest.digest()
