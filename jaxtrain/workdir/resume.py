"""Whether a run may go on: with the config and the data that it began with."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from jaxtrain.config import Config, difference
from jaxtrain.errors import UsageError, one_line
from jaxtrain.files import AnyPath
from jaxtrain.workdir.names import CLASSES, DATA

LENGTHS = ("train.epochs", "train.steps")


@dataclasses.dataclass(frozen=True)
class DataIdentity:
    """What a run's data is, wherever it lies: a run goes on with the same data only.

    Attributes:
        class_names: one name a class, in label order; kept in classes.json.
        fingerprints: role of a split (`train`, `eval`) to its checksum; kept in data.json.
    """

    class_names: tuple[str, ...]
    fingerprints: Mapping[str, str]


def refuse_another_run(
    path: AnyPath, previous: Config, config: Config, data: DataIdentity, *, extend: bool
) -> bool:
    """Refuses to go on with a run under another config or with other data.

    Args:
        path: the run's folder.
        previous: the config that it has.
        config: the config that it is to have.
        data: the data that there is.
        extend: whether it may be made longer.

    Returns:
        Whether it is made longer.

    Raises:
        UsageError: it is another run.
    """
    changes = difference(previous, config)
    _refuse_changes(path, changes, extend=extend)
    _refuse_other_classes(path, data.class_names)
    _refuse_other_data(path, data.fingerprints)
    return bool(changes)


def _is_longer(key: str, old: Any, new: Any) -> bool:
    return key in LENGTHS and old is not None and new is not None and new > old


def _refuse_changes(
    path: AnyPath, changes: Sequence[tuple[str, Any, Any]], *, extend: bool
) -> None:
    """Refuses all changes but, with `extend`, of a length to a larger one."""
    only_longer = all(_is_longer(*change) for change in changes)
    if only_longer and (extend or not changes):
        return
    shown = "; ".join(f"{key}: {old} -> {new}" for key, old, new in changes)
    if only_longer:
        fix = "make it longer with --extend"
    elif extend:
        fix = "--extend only allows a larger train.epochs or train.steps, whichever the run has"
    elif {key for key, _, _ in changes} == {"train.export_replica"}:
        fix = "give it to eval, predict or export instead, for all replicas are trained"
    else:
        fix = "take the old values, or another --workdir"
    raise UsageError(
        f"workdir {path} holds a run with another config: {shown}; {fix}, or start another run "
        "with --fresh"
    )


def _refuse_other_classes(path: AnyPath, new: Sequence[str]) -> None:
    old = _load(path / CLASSES)
    if not isinstance(old, list):
        raise UsageError(f"{path / CLASSES} is damaged: it must hold a list of class names")
    if len(old) != len(new):
        raise UsageError(
            f"the data has {len(new)} classes, but the run in {path} has {len(old)}; "
            "put the data back or start another run with --fresh"
        )
    for index, (before, after) in enumerate(zip(old, new, strict=True)):
        if before != after:
            raise UsageError(
                f"class {index} of the data is {after!r}, but {before!r} in the run in "
                f"{path}; put the data back or start another run with --fresh"
            )


def _refuse_other_data(path: AnyPath, new: Mapping[str, str]) -> None:
    old = _load(path / DATA)
    if not isinstance(old, dict):
        raise UsageError(f"{path / DATA} is damaged: it must hold a checksum for each split")
    for role, fingerprint in new.items():
        if old.get(role) != fingerprint:
            raise UsageError(
                f"the {role} split has changed since the run in {path} began (its checksum was "
                f"{old.get(role)}, it is {fingerprint}); put the data back or start another run "
                "with --fresh"
            )


def _load(path: AnyPath) -> Any:
    """The JSON value in `path`; None if it holds none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or one_line(error)}") from error
    except ValueError:
        return None
