"""How Orbax is used: its options, its errors, and which of its folders are whole steps."""

import sys
import warnings
from collections.abc import Callable
from typing import Any

from orbax.checkpoint import multihost
from orbax.checkpoint import v1 as ocp

from jaxtrain.errors import brief
from jaxtrain.files import AnyPath, is_bucket

# In a bucket, where nothing can be renamed, Orbax writes this object last.
COMMITTED = "commit_success.txt"


def context(*, alone: bool = False) -> ocp.Context:
    """Orbax's options: `meta` is JSON, so that a person can read it.

    From the first call on nothing is said of what Orbax leaves behind after a failure.

    Args:
        alone: not to wait for other processes: reading needs none of them, and one that fails
            would leave them waiting.
    """
    _quieten()
    registry = ocp.handlers.local_registry()
    registry.add(ocp.handlers.JsonHandler, checkpointable_name="meta")
    context = ocp.Context()
    context.checkpointables.registry = registry
    # Trained weights hardly get smaller, and a quarter of a save's time goes into trying.
    context.array.saving.use_compression = False
    if alone:
        here = multihost.process_index()
        context.multiprocessing.primary_host = here
        context.multiprocessing.active_processes = {here}
    return context


def list_steps(directory: AnyPath) -> list[int]:
    """Steps that were written whole, ascending; a save that was cut short is not among them."""
    if not directory.is_dir():
        return []
    return sorted(
        int(entry.name)
        for entry in directory.iterdir()
        if is_step_name(entry.name)
        and (entry / "_CHECKPOINT_METADATA").is_file()
        and is_committed(entry)
    )


def meta_file(step: AnyPath) -> AnyPath:
    """The file in a step's folder that holds its `meta`."""
    return step / "meta" / "data.json"


def is_committed(path: AnyPath) -> bool:
    """Whether the save of a step's folder came to its end."""
    return not is_bucket(path) or (path / COMMITTED).exists()


def is_step_name(name: str) -> bool:
    """Whether a step's folder may have this name: a whole number as Python writes it."""
    return name.isascii() and name.isdecimal() and str(int(name)) == name


def _quieten() -> None:
    """Has nothing said of what a failure leaves behind.

    Orbax leaves coroutines un-awaited, of which Python would warn, and closes the event loop that
    TensorStore's other answers are for.
    """
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    if not isinstance(sys.unraisablehook, _AllButLateAnswers):
        sys.unraisablehook = _AllButLateAnswers(sys.unraisablehook)


class _AllButLateAnswers:
    """A hook for exceptions that nobody can catch, without those of answers that come too late."""

    def __init__(self, hook: Callable[[Any], object]) -> None:
        self._hook = hook

    def __call__(self, unraisable: Any) -> None:
        error = unraisable.exc_value
        if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
            self._hook(unraisable)


def root(error: BaseException) -> BaseException:
    """The innermost cause; Orbax's own message hides it."""
    while True:
        inner = error.__cause__
        if inner is None and isinstance(error, BaseExceptionGroup):
            inner = error.exceptions[0]
        if inner is None:
            return error
        error = inner


def cause(error: BaseException) -> str:
    """The innermost cause, on one line."""
    error = root(error)
    return brief(error)
