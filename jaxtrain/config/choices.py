"""Checks that belong to whoever owns a table of names: an unknown name, a key nobody reads."""

import dataclasses
import difflib
from collections.abc import Collection, Iterable
from typing import Any

from jaxtrain.errors import UsageError


def unknown(key: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that its table does not have; lists the table, nearest first said."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return UsageError(f"{key}={name!r} is unknown: choose one of {', '.join(names)}{hint}")


def refuse_unread(
    section: str, values: Any, common: Collection[str], reads: Collection[str]
) -> None:
    """Refuses keys that were set but that the chosen name does not read.

    Args:
        section: the section's name in the config (`optimizer`).
        values: the section; its `name` or `source` is what was chosen.
        common: keys that every choice reads.
        reads: keys that this choice reads.

    Raises:
        UsageError: a key outside both differs from its default.
    """
    chosen = getattr(values, "name", None) or values.source
    for field in dataclasses.fields(values):
        value = getattr(values, field.name)
        if field.name in common or field.name in reads or value == field.default:
            continue
        raise UsageError(
            f"{section}.{field.name}={value!r} is set, but {chosen} does not read it; "
            f"unset it with --config.{section}.{field.name}={field.default!r}"
        )
