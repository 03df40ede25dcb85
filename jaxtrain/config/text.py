"""The text of `--config.KEY=TEXT` to values, by the key's type in the schema."""

import ast
from collections.abc import Mapping
from typing import Any

from jaxtrain.config.schema import Config
from jaxtrain.config.store import flatten
from jaxtrain.config.table import Key, key_docs, unknown_key
from jaxtrain.config.values import build, check_argument, check_value
from jaxtrain.errors import UsageError

BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def apply_overrides(config: Config, overrides: Mapping[str, str]) -> Config:
    """A Config with the keys in `overrides` set anew, as the command line does it.

    Args:
        config: the Config to start from; it is left as it is.
        overrides: dotted key to the text of its value. `model.args.NAME` sets one argument.

    Raises:
        UsageError: an unknown key, a text that its key refuses, keys that contradict each other.
    """
    return build(override_values(flatten(config), overrides))


def override_values(flat: Mapping[str, Any], overrides: Mapping[str, str]) -> dict[str, Any]:
    """Flat values with those of `overrides` in their place, each checked by its own key.

    Raises:
        UsageError: an unknown key, or a text that its key refuses.
    """
    values = dict(flat)
    for name, text in overrides.items():
        key, arguments = find_key(name)
        if arguments:
            before = values.get(key.name, key.default)
            value = _with_argument(name, before, arguments, _argument(text))
        else:
            value = _parse(key, text)
        values[key.name] = check_value(key, value, text)
    return values


def find_key(name: str) -> tuple[Key, list[str]]:
    """The key that `name` sets, and the argument's path where it sets one inside a free-form dict.

    Raises:
        UsageError: no key has this name.
    """
    keys = key_docs()
    if name in keys:
        return keys[name], []
    for key in keys.values():
        if key.kind is dict and name.startswith(f"{key.name}."):
            path = name.removeprefix(f"{key.name}.").split(".")
            for argument in path:
                check_argument(key.name, argument)
            return key, path
    raise unknown_key(name)


def parse_number(text: str) -> Any:
    """The number that `text` writes, as int where it is written as one; other text as it is."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _parse(key: Key, text: str) -> Any:
    """The natural reading of `text`; where there is none the text, which `check_value` refuses."""
    # A name that must be given may be none, as of `data.cache`.
    if text == "None" or (text == "none" and (key.optional or key.kind is not str)):
        return None
    if key.kind in (int, float):
        return parse_number(text)
    if key.kind is bool:
        return BOOLEANS.get(text.casefold(), text)
    if key.kind is tuple and text.strip():
        return _elements(text, str if key.element is str else None)
    if key.kind is dict:
        value = _literal(text)
        return value if isinstance(value, dict) else text
    return text


def _elements(text: str, only: type | None) -> list[Any]:
    """`(512,256)`, `[512,256]`, `512,256` and `512` alike; names need no quotes."""
    value = _literal(text)
    parts = list(value) if isinstance(value, tuple | list) else [value]
    if value is not text and (only is None or all(isinstance(part, only) for part in parts)):
        return parts
    inner = text.strip()
    if inner[:1] + inner[-1:] in ("()", "[]"):
        inner = inner[1:-1]
    words = [word.strip() for word in inner.split(",")]
    if words[-1] == "" and len(words) > 1:  # (512,)
        words.pop()
    return words if only is str else [parse_number(word) for word in words]


def _argument(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    return _literal(text)


def _literal(text: str) -> Any:
    """The Python literal that `text` writes; `text` itself where it writes none."""
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _with_argument(
    name: str, arguments: Mapping[str, Any], path: list[str], value: Any
) -> dict[str, Any]:
    """`arguments` with the one at `path` set to `value`; `name` is its whole name."""
    first, *rest = path
    if not rest:
        return {**arguments, first: value}
    inner = arguments.get(first, {})
    if not isinstance(inner, Mapping):
        raise UsageError(f"{name} cannot be set: {first}={inner!r} is not a dict")
    return {**arguments, first: _with_argument(name, inner, rest, value)}
