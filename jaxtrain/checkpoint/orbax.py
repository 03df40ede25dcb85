"""How Orbax is used: its options, its errors, and which of its folders are whole steps."""

import pathlib
import warnings

from orbax.checkpoint import v1 as ocp


def context() -> ocp.Context:
    """Orbax's options: `meta` is JSON, so that a person can read it."""
    registry = ocp.handlers.local_registry()
    registry.add(ocp.handlers.JsonHandler, checkpointable_name="meta")
    context = ocp.Context()
    context.checkpointables.registry = registry
    # Trained weights hardly get smaller, and a quarter of a save's time goes into trying.
    context.array.saving.use_compression = False
    return context


def list_steps(directory: pathlib.Path) -> list[int]:
    """Steps that were written whole, ascending; a save that was cut short is not among them."""
    if not directory.is_dir():
        return []
    return sorted(
        int(entry.name)
        for entry in directory.iterdir()
        if is_step_name(entry.name) and (entry / "_CHECKPOINT_METADATA").is_file()
    )


def is_step_name(name: str) -> bool:
    """Whether a step's folder may have this name: a whole number as Python writes it."""
    return name.isascii() and name.isdecimal() and str(int(name)) == name


def quieten() -> None:
    """After a failure Orbax leaves coroutines un-awaited, and Python would warn of each."""
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)


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
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"
