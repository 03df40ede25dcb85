"""A row of a table of names."""

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Choice:
    """What a name stands for.

    Attributes:
        build: makes it from its section of the config.
        reads: the keys of the section that it reads, beside those that all rows do.
    """

    build: Callable[..., Any]
    reads: frozenset[str] = frozenset()
