"""One outcome on all processes: what one of them finds or fails at, each of them knows.

They talk by collectives of their devices, as a training step does, so all processes call these
functions in the same order and from one thread at a time. What other threads do meanwhile may use
the devices, but must not bring them together: compiling does not, and neither do the copies of a
split, which each process puts on its own devices alone.
"""

import json
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxtrain.errors import CheckpointError, JaxtrainError, UsageError, one_line

T = TypeVar("T")


class DamagedError(CheckpointError):
    """A step whose files are not what was written."""


# By how much they matter where processes fail in different ways: a step that one process cannot
# read for now must not be set aside because it is damaged for another.
_KINDS = {kind.__name__: kind for kind in (UsageError, CheckpointError, DamagedError)}


def on_first(act: Callable[[], T]) -> T:
    """What `act` does and returns on process 0, on every process.

    Args:
        act: returns a JSON value.

    Raises:
        JaxtrainError: it failed; the same kind and words on every process.
    """
    if jax.process_count() == 1:
        return act()
    value, failure = _try(act) if jax.process_index() == 0 else (None, None)
    first = _share({"value": value, "failure": _described(failure)})[0]
    if first["failure"] is not None:
        raise _failure(first["failure"]) from failure
    return first["value"]


def on_all(act: Callable[[], T]) -> T:
    """What `act` returns on this process, once it has succeeded on every one.

    Raises:
        JaxtrainError: it failed on some; the same kind and words on every process.
    """
    if jax.process_count() == 1:
        return act()
    value, failure = _try(act)
    failures = {
        index: told for index, told in enumerate(_share(_described(failure))) if told is not None
    }
    if failures:
        index = min(failures, key=lambda index: (list(_KINDS).index(failures[index][0]), index))
        kind, text = failures[index]
        raise _failure((kind, f"process {index}: {text}")) from failure
    return value


def _try(act: Callable[[], T]) -> tuple[Any, Exception | None]:
    try:
        return act(), None
    except Exception as error:  # a fault of ours, too, must not leave the others waiting
        return None, error


def _described(failure: Exception | None) -> tuple[str, str] | None:
    """An error as the name of its kind and its words."""
    if failure is None:
        return None
    if isinstance(failure, JaxtrainError):
        name = type(failure).__name__
        return name if name in _KINDS else CheckpointError.__name__, str(failure)
    return CheckpointError.__name__, f"{type(failure).__name__}: {one_line(failure)}"


def _failure(told: tuple[str, str]) -> JaxtrainError:
    kind, text = told
    return _KINDS[kind](text)


def _share(value: Any) -> list[Any]:
    """Every process's JSON value, in the order of their indices."""
    content = json.dumps(value).encode()
    sizes = multihost_utils.process_allgather(np.int32(len(content)))
    # There is a program for each length; a power of two makes them few.
    padded = np.zeros(1 << max(int(sizes.max()) - 1, 0).bit_length(), np.uint8)
    padded[: len(content)] = np.frombuffer(content, np.uint8)
    rows = multihost_utils.process_allgather(padded)
    return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]
