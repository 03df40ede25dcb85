"""A Config as plain data: dicts, JSON, what identifies a run, and what differs between two."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxtrain.config.schema import Config
from jaxtrain.config.table import key_docs
from jaxtrain.config.values import from_dict
from jaxtrain.errors import UsageError


def to_dict(config: Config) -> dict[str, Any]:
    """Nested values that JSON can hold (tuples as lists); `from_dict` gives an equal Config."""
    nested: dict[str, Any] = {}
    for name, value in flatten(config).items():
        *path, leaf = name.split(".")
        section = nested
        for part in path:
            section = section.setdefault(part, {})
        section[leaf] = _as_json(value)
    return nested


def to_json(config: Config) -> str:
    """The text of `config.json`; `load_json` gives an equal Config."""
    return json.dumps(to_dict(config), indent=2, allow_nan=False) + "\n"


def load_json(path: Path) -> Config:
    """The Config in a file that `to_json` wrote.

    Raises:
        UsageError: the file cannot be read, is damaged, or holds a bad key; names the file.
    """
    values = read_json(path)
    try:
        return from_dict(values)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def read_json(path: Path) -> Mapping[str, Any]:
    """The nested values in a JSON file, not checked yet.

    Raises:
        UsageError: the file cannot be read or does not hold a JSON object.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{path} is damaged: line {error.lineno} is not JSON ({error.msg})"
        ) from error
    except (ValueError, RecursionError) as error:  # not UTF-8, absurd numbers, absurd nesting
        raise UsageError(f"{path} is damaged: it is not a JSON text") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path} is damaged: it must hold a JSON object, not {values!r:.40}")
    return values


def flatten(config: Config) -> dict[str, Any]:
    """Every key's value by its dotted name, in the schema's order; `model.args` is one value."""
    flat = {}
    for name in key_docs():
        value: Any = config
        for part in name.split("."):
            value = getattr(value, part)
        flat[name] = value
    return flat


def identity(config: Config) -> str:
    """8 hex digits of all that identifies a run, the same in every process and on every machine.

    That is every key that is not `free` and has another value than the schema's, so that a new
    version's new keys leave the runs of before where they are.
    """
    keys = key_docs()
    fixed = {
        name: _as_json(value)
        for name, value in flatten(config).items()
        if not keys[name].free and value != keys[name].default
    }
    text = json.dumps(fixed, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def difference(old: Config, new: Config, ignore_free: bool = True) -> list[tuple[str, Any, Any]]:
    """The keys whose values differ, as (dotted key, old value, new value), in the schema's order.

    Args:
        old: the Config that a run was started with.
        new: the Config that it is to go on with.
        ignore_free: leave out the keys that a resumed run may change.
    """
    after = flatten(new)
    return [
        (name, value, after[name])
        for name, value in flatten(old).items()
        if value != after[name] and not (ignore_free and key_docs()[name].free)
    ]


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_as_json(item) for item in value]
    if isinstance(value, dict):
        return {name: _as_json(item) for name, item in value.items()}
    return value
