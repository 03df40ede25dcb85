"""Reads checkpoints, and notices those that are not what was written.

Each process reads its part of the arrays alone; then all raise what one of them has to raise.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import jax
from orbax.checkpoint import v1 as ocp

from jaxtrain.checkpoint.agreement import DamagedError, on_all, on_first
from jaxtrain.checkpoint.damage import not_whole, remove, set_aside
from jaxtrain.checkpoint.on_devices import checksums
from jaxtrain.checkpoint.orbax import cause, context, is_step_name, list_steps, root
from jaxtrain.errors import CheckpointError, UsageError
from jaxtrain.files import AnyPath, absolute
from jaxtrain.state import TrainState

T = TypeVar("T")


def read_meta(directory: AnyPath, step: int) -> dict[str, Any]:
    """The `meta` of a step.

    Raises:
        CheckpointError: it cannot be read.
    """
    return _load(directory / str(step), {"meta": None})["meta"]


def _check_meta(path: AnyPath, meta: Any) -> None:
    if not isinstance(meta, dict) or not isinstance(meta.get("checksums"), dict):
        raise DamagedError(f"checkpoint {path}: its meta is not jaxtrain's")
    if str(meta.get("step")) != path.name:
        raise DamagedError(f"checkpoint {path} holds step {meta.get('step')}, not {path.name}")


def restore_model(directory: AnyPath, step: int, abstract: Any) -> Any:
    """The `model` item alone, verified; no optimizer is needed.

    Args:
        directory: the run's checkpoints.
        step: one that `list_steps` has.
        abstract: `TrainState.model` with shapes, dtypes and shardings.

    Raises:
        CheckpointError: it cannot be read, does not fit `abstract` or is damaged.
    """
    loaded = _load(directory / str(step), {"model": abstract, "meta": None})
    _verify(directory / str(step), "model", loaded)
    return loaded["model"]


def restore_state(directory: AnyPath, step: int, abstract: TrainState) -> TrainState:
    """The whole state, verified.

    Raises:
        CheckpointError: as for `restore_model`.
    """
    items = {"model": abstract.model, "training": abstract.training, "meta": None}
    loaded = _load(directory / str(step), items)
    for item in ("model", "training"):
        _verify(directory / str(step), item, loaded)
    return TrainState.join(loaded["model"], loaded["training"])


def restore_newest(
    directory: AnyPath, abstract: TrainState, warn: Callable[[str], None]
) -> TrainState | None:
    """The newest step that is whole and undamaged, or None if nothing was saved yet.

    A damaged step is set aside as `<step>.damaged`, so that the run can save that step again. A
    step that cannot be read for another reason (permissions, a failing disk) stays and is raised.

    Args:
        directory: the run's checkpoints.
        abstract: the state with shapes, dtypes and shardings.
        warn: told in one line of each damaged step.

    Raises:
        CheckpointError: there are steps and every one is damaged, or one cannot be read.
    """
    steps = agreed_steps(directory)
    for name in on_first(lambda: not_whole(directory)):
        if steps and is_step_name(name) and int(name) < steps[-1]:  # a kill cut its removal short
            on_first(lambda name=name: remove(directory, name))  # type: ignore[misc]
            continue
        aside = on_first(lambda name=name: set_aside(directory, name))  # type: ignore[misc]
        warn(f"warning: checkpoint {directory / name} is not whole; it was set aside as {aside}")
    damaged: list[tuple[int, DamagedError]] = []
    for step in reversed(steps):
        try:
            state = restore_state(directory, step, abstract)
        except DamagedError as error:
            damaged.append((step, error))
            continue
        for bad, reason in damaged:
            aside = on_first(lambda bad=bad: set_aside(directory, str(bad)))  # type: ignore[misc]
            warn(f"warning: {reason}; it was set aside as {aside}, going on from step {step}")
        return state
    if damaged:
        raise CheckpointError(
            f"{damaged[0][1]}; all {len(damaged)} checkpoints are damaged; start another run with "
            "--fresh, or move the run's folder away"
        )
    return None


def agreed_steps(directory: AnyPath) -> list[int]:
    """`list_steps` of process 0, on every process: a live run may save and remove meanwhile."""
    return on_first(lambda: list_steps(directory))


def resolve_step(directory: AnyPath, which: str) -> int:
    """The step that `--checkpoint` means.

    Args:
        directory: the run's checkpoints.
        which: `last`, `best` or a step number.

    Raises:
        UsageError: there is no such step; the message lists those there are.
    """
    steps = agreed_steps(directory)
    if not steps:
        raise UsageError(f"{directory} holds no checkpoint yet; train first")
    if which == "last":
        return steps[-1]
    listed = f"the steps are {', '.join(map(str, steps))}"
    if which == "best":
        best = read_meta(directory, steps[-1]).get("best")
        if best is None:
            raise UsageError(
                f"--checkpoint=best: the run kept no best one (checkpoint.best_metric); {listed}"
            )
        which = str(best["step"])
    if not is_step_name(which) or int(which) not in steps:
        raise UsageError(f"--checkpoint={which} is not in {directory}: {listed}, last or best")
    return int(which)


def read_located(locate: Callable[[], tuple[AnyPath, int]], read: Callable[[AnyPath, int], T]) -> T:
    """Reads the step that somebody means; looks again if a live run removed it meanwhile.

    Args:
        locate: finds the folder of checkpoints and the step, as they are now.
        read: reads that step.

    Raises:
        CheckpointError: it is damaged, or a file may not be read.
        JaxtrainError: what `locate` and `read` raise.
    """
    while True:
        try:
            directory, step = locate()
            try:
                return read(directory, step)
            except CheckpointError:
                if step in agreed_steps(directory):
                    raise
        except PermissionError as error:
            raise CheckpointError(
                f"{error.filename or 'the checkpoint'} cannot be read: {error.strerror}; make it "
                "readable"
            ) from error


def _load(path: AnyPath, items: dict[str, Any]) -> dict[str, Any]:
    """A step's items and its `meta`, which is whole.

    Raises:
        CheckpointError: as for `restore_model`, wherever it is found.
    """
    return on_all(lambda: _load_here(path, items))


def _load_here(path: AnyPath, items: dict[str, Any]) -> dict[str, Any]:
    try:
        with context(alone=True):
            loaded: dict[str, Any] = ocp.load_checkpointables(absolute(path), items)
    except Exception as error:  # Orbax, TensorStore and JSON each have their own types
        _check_permissions(path, items)
        for item, abstract in items.items():
            if misfit := _misfit(path, item, abstract):
                raise CheckpointError(
                    f"checkpoint {path} is not of this model: {misfit}; use the model and the "
                    "optimizer that it was written with, or start another run with --fresh"
                ) from error
        kind = CheckpointError if _is_passing(root(error)) else DamagedError
        raise kind(f"checkpoint {path} cannot be read: {cause(error)}") from error
    _check_meta(path, loaded["meta"])
    return loaded


def _check_permissions(path: AnyPath, items: Iterable[str]) -> None:
    """Orbax finds no arrays in a folder that cannot be read, and does not say so."""
    for folder in (path, *(path / item for item in items)):
        try:
            next(folder.iterdir(), None)
        except PermissionError as error:
            raise CheckpointError(
                f"checkpoint {path} cannot be read: {folder}: {error.strerror}; make it readable"
            ) from error
        except Exception:  # then Orbax says what is wrong
            continue


def _misfit(path: AnyPath, item: str, abstract: Any) -> str | None:
    """The first array that the checkpoint has otherwise than `abstract`, if any."""
    try:
        with context(alone=True):
            stored = ocp.checkpointables_metadata(absolute(path)).metadata[item]
        arrays = jax.tree.leaves_with_path(stored, is_leaf=lambda x: hasattr(x, "shape"))
        there = {_name(where): tuple(leaf.shape) for where, leaf in arrays}
    except Exception:  # then the files themselves are what is wrong
        return None
    wanted = {_name(where): leaf.shape for where, leaf in jax.tree.leaves_with_path(abstract)}
    for name in [*wanted, *there]:
        if there.get(name) != wanted.get(name):
            old, new = (shapes.get(name, "nothing") for shapes in (there, wanted))
            return f"{item} {name} is {old} there, but {new} here"
    return None


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _is_passing(error: BaseException) -> bool:
    """Whether reading may succeed another time: the machine failed, not the file."""
    missing = isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError)
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and not missing)


def _verify(path: AnyPath, item: str, loaded: Mapping[str, Any]) -> None:
    expected = loaded["meta"]["checksums"].get(item)
    found = checksums(loaded[item])
    if found == expected:
        return
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(loaded[item])]
    bad = [name for name, a, b in zip(paths, found, expected or [], strict=False) if a != b]
    raise DamagedError(
        f"checkpoint {path} is damaged: {item}{bad[0] if bad else ''} does not match its checksum"
    )
