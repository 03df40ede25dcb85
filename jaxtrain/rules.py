"""Rules by parameter-name pattern: `PATTERN=VALUE; PATTERN=VALUE`, the first match counts.

A parameter's name is its path joined with `/` (`hidden_0/kernel`). A pattern is a regular
expression that matches the whole name or its end after a `/`, so `kernel` means every kernel and
`head/kernel` the head's. Every parameter must match a rule and every rule must match a parameter,
except a closing `.*`, so that a renamed layer cannot silently leave its rule.
"""

import re
from collections.abc import Sequence
from typing import TypeVar

from jaxtrain.errors import UsageError

CATCH_ALL = ".*"

T = TypeVar("T")


def parse_factors(text: str, key: str) -> tuple[tuple[str, float], ...]:
    """Parses `PATTERN=FACTOR; ...` into pairs.

    Args:
        text: the rules.
        key: the config key they come from, for the messages.

    Raises:
        UsageError: a rule without `=`, a bad regular expression, or a factor that is not a finite
            number of 0 or more.
    """
    rules = []
    for rule in filter(None, (part.strip() for part in text.split(";"))):
        pattern, separator, value = (part.strip() for part in rule.rpartition("="))
        if not separator or not pattern:
            raise UsageError(f"{key}: {rule!r} is not PATTERN=FACTOR, as in 'kernel=1; .*=0'")
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(f"{key}: {pattern!r} is not a regular expression ({error})") from error
        try:
            factor = float(value)
        except ValueError:
            factor = -1.0
        if not 0 <= factor < float("inf"):
            raise UsageError(f"{key}: factor {value!r} of {pattern!r} must be a number from 0 up")
        rules.append((pattern, factor))
    if not rules:
        raise UsageError(f"{key}={text!r} holds no rule; write 'kernel=1; .*=0'")
    return tuple(rules)


def resolve(rules: Sequence[tuple[str, T]], names: Sequence[str], key: str) -> dict[str, T]:
    """Gives every parameter the value of the first rule that matches its name.

    Args:
        rules: (pattern, value) pairs, in order.
        names: every parameter's name.
        key: the config key they come from, for the messages.

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
            raise UsageError(f"{key}: no rule matches parameter {name!r}; end with '{CATCH_ALL}=0'")
    for pattern, _ in rules:
        if pattern not in used and pattern != CATCH_ALL:
            raise UsageError(
                f"{key}: {pattern!r} matches no parameter; the parameters are {', '.join(names)}"
            )
    return values
