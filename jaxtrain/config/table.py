"""The schema as a table: one `Key` a dotted name, and the nearest name to one that is unknown."""

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jaxtrain.config.checks import Check
from jaxtrain.config.schema import Config
from jaxtrain.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of the schema.

    Attributes:
        name: dotted name, `optimizer.learning_rate`.
        kind: int, float, bool, str, tuple or dict.
        element: kind of a tuple's elements, None for any other kind.
        optional: whether None unsets it.
        default: the schema's default.
        doc: what it means, with its unit.
        free: whether a resumed run may change it.
        check: value to a complaint or None; never called with None, NaN or an infinity.
    """

    name: str
    kind: type
    element: type | None
    optional: bool
    default: Any
    doc: str
    free: bool
    check: Check | None


class UnknownKeyError(UsageError, AttributeError):
    """An unknown key; an AttributeError too, so that `hasattr` works on a recipe's config."""


@functools.cache
def key_docs() -> Mapping[str, Key]:
    """Every key of the schema by its dotted name, in the schema's order."""
    return {key.name: key for key in _keys(Config, "")}


@functools.cache
def sections() -> Mapping[str, type]:
    """Every section's dataclass by its dotted name (`model.mlp`), in the schema's order."""
    return dict(_sections(Config, ""))


def unknown_key(name: str) -> UnknownKeyError:
    """The error for a key that the schema does not have; says the nearest."""
    if name in sections():
        return UnknownKeyError(f"{name} is a section, not a key; it has {_listing(_within(name))}")
    if not name:
        return UnknownKeyError("a key without a name; write --config.KEY=VALUE")
    near = nearest(name)
    if near:
        return UnknownKeyError(f"unknown key {name}; did you mean {_listing(near, 'or')}?")
    section = name.rpartition(".")[0]
    if section in sections():
        return UnknownKeyError(f"unknown key {name}; {section} has {_listing(_within(section))}")
    tops = dict.fromkeys(key.partition(".")[0] for key in key_docs())
    return UnknownKeyError(f"unknown key {name}; the config has {_listing(tops)}")


def nearest(name: str) -> list[str]:
    """The keys or sections that a person who wrote `name` most likely meant; empty if none is."""
    names = [*key_docs(), *sections()]
    leaf = name.rpartition(".")[2]
    same_leaf = [known for known in names if known.rpartition(".")[2] == leaf]
    if same_leaf and leaf == name:
        return same_leaf
    if same_leaf:
        in_section = difflib.get_close_matches(name, same_leaf, n=1, cutoff=0.75)
        return in_section or same_leaf
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.75)
    if close:
        return close
    leaves: dict[str, list[str]] = {}
    for known in names:
        leaves.setdefault(known.rpartition(".")[2], []).append(known)
    close_leaf = difflib.get_close_matches(leaf, leaves, n=1, cutoff=0.75)
    return leaves[close_leaf[0]] if close_leaf else []


def _within(section: str) -> list[str]:
    return [name for name in key_docs() if name.startswith(f"{section}.")]


def _listing(names: Iterable[str], last: str = "and") -> str:
    *head, tail = names
    return f"{', '.join(head)} {last} {tail}" if head else tail


def _sections(cls: type, prefix: str) -> Iterator[tuple[str, type]]:
    for name, hint in typing.get_type_hints(cls).items():
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield f"{prefix}{name}", hint
            yield from _sections(hint, f"{prefix}{name}.")


def _keys(cls: type, prefix: str) -> Iterator[Key]:
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        name = f"{prefix}{field.name}"
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield from _keys(hint, f"{name}.")
        else:
            yield _key(name, hint, field)


def _key(name: str, hint: Any, field: "dataclasses.Field[Any]") -> Key:
    optional = isinstance(hint, types.UnionType)
    if optional:
        hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
    origin = typing.get_origin(hint)
    factory = field.default_factory
    return Key(
        name=name,
        kind=origin or hint,
        element=typing.get_args(hint)[0] if origin is tuple else None,
        optional=optional,
        default=field.default if factory is dataclasses.MISSING else factory(),
        **field.metadata,
    )
