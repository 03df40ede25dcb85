"""Rules by parameter-name pattern: `PATTERN=VALUE; PATTERN=VALUE`, the first match counts.

A parameter's name is its path joined with `/` (`hidden_0/kernel`). A pattern is a regular
expression that matches the whole name or its end after a `/`, so `kernel` means every kernel and
`head/kernel` the head's. Every parameter must match a rule and every rule must match a parameter,
except a closing `.*`, so that a renamed layer cannot silently leave its rule.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax

from jaxtrain.errors import UsageError

CATCH_ALL = ".*"

T = TypeVar("T")


def parameter_names(params: Any) -> list[str]:
    """Every parameter's path joined with `/`, in the order of `jax.tree.leaves`."""
    paths = [path for path, _ in jax.tree.leaves_with_path(params)]
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path in paths]


def parse(
    text: str, key: str, read: Callable[[str, str], T], example: str
) -> tuple[tuple[str, T], ...]:
    """Parses `PATTERN=VALUE; ...` into pairs.

    Args:
        text: the rules.
        key: the config key they come from, for the messages.
        read: a value's text, and its pattern for the messages, to the value.
        example: rules as they should be, for the messages.

    Raises:
        UsageError: a rule without `=`, a bad regular expression, or what `read` raises.
    """
    rules = []
    for rule in filter(None, (part.strip() for part in text.split(";"))):
        pattern, separator, value = (part.strip() for part in rule.rpartition("="))
        if not separator or not pattern:
            raise UsageError(f"{key}: {rule!r} is not PATTERN=VALUE, as in {example!r}")
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"{key}: {pattern!r} is not a regular expression ({error})") from error
        rules.append((pattern, read(value, pattern)))
    if not rules:
        raise UsageError(f"{key}={text!r} holds no rule; write {example!r}")
    return tuple(rules)


def parse_factors(text: str, key: str) -> tuple[tuple[str, float], ...]:
    """`parse` for values that are finite numbers of 0 or more.

    Raises:
        UsageError: as for `parse`, or another value.
    """

    def read(value: str, pattern: str) -> float:
        try:
            factor = float(value)
        except ValueError:
            factor = -1.0
        if not 0 <= factor < float("inf"):
            raise UsageError(f"{key}: factor {value!r} of {pattern!r} must be a number from 0 up")
        return factor

    return parse(text, key, read, "kernel=1; .*=0")


def resolve(
    rules: Sequence[tuple[str, T]], names: Sequence[str], key: str, otherwise: str = "0"
) -> dict[str, T]:
    """Gives every parameter the value of the first rule that matches its name.

    Args:
        rules: (pattern, value) pairs, in order.
        names: every parameter's name.
        key: the config key they come from, for the messages.
        otherwise: the text of a value that changes nothing, for the messages.

    Returns:
        Name to value, in the order of `names`.

    Raises:
        UsageError: a parameter that no rule matches, or a rule that matches no parameter.
    """
    values: dict[str, T] = {}
    used: set[str] = set()
    for name in names:
        for pattern, value in rules:
            if re.search(rf"(?:^|/)(?:{pattern})$", name):
                values[name] = value
                used.add(pattern)
                break
        else:
            raise UsageError(
                f"{key}: no rule matches parameter {name!r}; end with '{CATCH_ALL}={otherwise}'"
            )
    for pattern, _ in rules:
        if pattern not in used and pattern != CATCH_ALL:
            raise UsageError(
                f"{key}: {pattern!r} matches no parameter; the parameters are {', '.join(names)}"
            )
    return values
