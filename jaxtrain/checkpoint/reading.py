"""Reads checkpoints, and notices those that are not what was written."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
from orbax.checkpoint import v1 as ocp

from jaxtrain.checkpoint.orbax import cause, context, is_step_name, list_steps, quieten, root
from jaxtrain.errors import CheckpointError, UsageError
from jaxtrain.state import TrainState, fingerprint


class _DamagedError(CheckpointError):
    """A step whose files are not what was written."""


def read_meta(directory: pathlib.Path, step: int) -> dict[str, Any]:
    """The `meta` of a step.

    Raises:
        CheckpointError: it cannot be read.
    """
    meta = _load(directory / str(step), {"meta": None})["meta"]
    _check_meta(directory / str(step), meta)
    return meta


def _check_meta(path: pathlib.Path, meta: Any) -> None:
    if not isinstance(meta, dict) or not isinstance(meta.get("checksums"), dict):
        raise _DamagedError(f"checkpoint {path}: its meta is not jaxtrain's")
    if str(meta.get("step")) != path.name:
        raise _DamagedError(f"checkpoint {path} holds step {meta.get('step')}, not {path.name}")


def restore_model(directory: pathlib.Path, step: int, abstract: Any) -> Any:
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


def restore_state(directory: pathlib.Path, step: int, abstract: TrainState) -> TrainState:
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
    directory: pathlib.Path, abstract: TrainState, warn: Callable[[str], None]
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
    steps = list_steps(directory)
    for name in _not_whole(directory, steps):
        aside = _set_aside(directory, name)
        warn(f"warning: checkpoint {directory / name} is not whole; it was set aside as {aside}")
    damaged: list[tuple[int, _DamagedError]] = []
    for step in reversed(steps):
        try:
            state = restore_state(directory, step, abstract)
        except _DamagedError as error:
            damaged.append((step, error))
            continue
        for bad, reason in damaged:
            aside = _set_aside(directory, str(bad))
            warn(f"warning: {reason}; it was set aside as {aside}, going on from step {step}")
        return state
    if damaged:
        raise CheckpointError(
            f"{damaged[0][1]}; all {len(damaged)} checkpoints are damaged; start another run with "
            "--fresh, or move the run's folder away"
        )
    return None


def resolve_step(directory: pathlib.Path, which: str) -> int:
    """The step that `--checkpoint` means.

    Args:
        directory: the run's checkpoints.
        which: `last`, `best` or a step number.

    Raises:
        UsageError: there is no such step; the message lists those there are.
    """
    steps = list_steps(directory)
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


def _load(path: pathlib.Path, items: dict[str, Any]) -> dict[str, Any]:
    try:
        with context():
            loaded: dict[str, Any] = ocp.load_checkpointables(path.absolute(), items)
    except Exception as error:  # Orbax, TensorStore and JSON each have their own types
        quieten()
        for item, abstract in items.items():
            if misfit := _misfit(path, item, abstract):
                raise CheckpointError(
                    f"checkpoint {path} is not of this model: {misfit}; use the model and the "
                    "optimizer that it was written with, or start another run with --fresh"
                ) from error
        kind = CheckpointError if _is_passing(root(error)) else _DamagedError
        raise kind(f"checkpoint {path} cannot be read: {cause(error)}") from error
    return loaded


def _misfit(path: pathlib.Path, item: str, abstract: Any) -> str | None:
    """The first array that the checkpoint has otherwise than `abstract`, if any."""
    try:
        stored = ocp.checkpointables_metadata(path.absolute()).metadata[item]
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


def _not_whole(directory: pathlib.Path, steps: list[int]) -> list[str]:
    """Folders that Orbax takes for steps, but that are none; it would never save those steps."""
    if not directory.is_dir():
        return []
    whole = set(map(str, steps))
    names = sorted(entry.name for entry in directory.iterdir())
    return [name for name in names if name.isdecimal() and name not in whole]


def _set_aside(directory: pathlib.Path, name: str) -> pathlib.Path:
    """Renames a damaged step to the first free `<name>.damaged`, `<name>.damaged-2`, ..."""
    aside, number = directory / f"{name}.damaged", 1
    while aside.exists():
        number += 1
        aside = directory / f"{name}.damaged-{number}"
    try:
        (directory / name).rename(aside)
    except OSError as error:
        raise CheckpointError(
            f"damaged checkpoint {directory / name} cannot be set aside: {error.strerror}; "
            "move it away"
        ) from error
    return aside


def _verify(path: pathlib.Path, item: str, loaded: Mapping[str, Any]) -> None:
    _check_meta(path, loaded["meta"])
    expected = loaded["meta"]["checksums"].get(item)
    found = jax.device_get(jax.jit(fingerprint)(loaded[item])).tolist()
    if found == expected:
        return
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(loaded[item])]
    bad = [name for name, a, b in zip(paths, found, expected or [], strict=False) if a != b]
    raise _DamagedError(
        f"checkpoint {path} is damaged: {item}{bad[0] if bad else ''} does not match its checksum"
    )
