"""Rules by parameter-name pattern: `PATTERN=VALUE; PATTERN=VALUE`, the first match counts.

A parameter's name is its path joined with `/` (`hidden_0/kernel`). A pattern is a regular
expression that matches one or several whole parts of it: `kernel` means every kernel, `head` all
of a layer `head`, and `head/kernel` its kernel. Every parameter must match a rule and every rule
must match a parameter, except a closing `.*`, so that a renamed layer cannot silently leave its
rule.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax

from jaxtrain.errors import UsageError

CATCH_ALL = ".*"

# By convention the layer that gives the logits, at the top of its network.
HEAD = "head"

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Matched:
    """What came of one rule.

    Attributes:
        pattern: its pattern.
        value: what it gives.
        names: the parameters that it is the first to match.
    """

    pattern: str
    value: Any
    names: tuple[str, ...]


def parameter_names(params: Any) -> list[str]:
    """Every parameter's path joined with `/`, in the order of `jax.tree.leaves`."""
    paths = [path for path, _ in jax.tree.leaves_with_path(params)]
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path in paths]


def in_head(name: str) -> bool:
    """Whether a parameter is one of the layer `HEAD`."""
    return name.partition("/")[0] == HEAD


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
        UsageError: a parameter that no rule matches, or a rule that is the first to match none.
    """
    values = {
        name: rule.value for rule in match(rules, names, key, otherwise) for name in rule.names
    }
    return {name: values[name] for name in names}


def match(
    rules: Sequence[tuple[str, T]], names: Sequence[str], key: str, otherwise: str = "0"
) -> list[Matched]:
    """What each rule matches; otherwise as `resolve`."""
    compiled = [re.compile(rf"(?:^|/)(?:{pattern})(?:$|/)") for pattern, _ in rules]
    found: list[list[str]] = [[] for _ in rules]
    for name in names:
        first = next((i for i, pattern in enumerate(compiled) if pattern.search(name)), None)
        if first is None:
            raise UsageError(
                f"{key}: no rule matches parameter {name!r}; end with '{CATCH_ALL}={otherwise}'"
            )
        found[first].append(name)
    for (pattern, _), matched, own in zip(rules, found, compiled, strict=True):
        if not matched and pattern != CATCH_ALL:
            shadowed = any(own.search(name) for name in names)
            why = " that no rule before it does" if shadowed else ""
            raise UsageError(
                f"{key}: {pattern!r} matches no parameter{why}; the parameters are "
                f"{', '.join(names)}"
            )
    return [
        Matched(pattern, value, tuple(matched))
        for (pattern, value), matched in zip(rules, found, strict=True)
    ]
