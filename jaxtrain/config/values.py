"""Values to the frozen Config: types, ranges and the checks across keys, all strict.

Two forms of values: nested (`{"train": {"epochs": 10}}`, a recipe's or a file's) and flat
(`{"train.epochs": 10}`, checked and typed).
"""

import dataclasses
import keyword
import math
import numbers
import typing
from collections.abc import Mapping
from typing import Any

from jaxtrain.config.schema import Config
from jaxtrain.config.table import Key, key_docs, sections, unknown_key
from jaxtrain.errors import UsageError

_SINGULAR = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    dict: "a dict such as {'width': 3}",
}
_PLURAL = {int: "whole numbers", float: "numbers", str: "text"}


def from_dict(values: Mapping[str, Any]) -> Config:
    """Nested values to a Config; a key that is not given has the schema's default.

    Accepted: an integral number for an int, an int for a float, a list for a tuple. Refused: an
    unknown key, any other type (a bool is no number), NaN and infinities, a value outside the
    key's range, None for a key that is not optional, and keys that contradict each other.

    Raises:
        UsageError: one line with the key's full name.
    """
    return build(check_values(values))


def check_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values to flat ones, each checked by its own key, only those that are given.

    Raises:
        UsageError: an unknown key, or a value that its key refuses.
    """
    flat: dict[str, Any] = {}
    _collect(values, "", flat)
    return flat


def build(flat: Mapping[str, Any]) -> Config:
    """Flat, checked values over the schema's defaults to a Config.

    Raises:
        UsageError: keys contradict each other.
    """
    defaults = {name: key.default for name, key in key_docs().items()}
    config: Config = _section(Config, "", {**defaults, **flat})
    _check_across(config)
    return config


def check_value(key: Key, value: Any, text: str | None = None) -> Any:
    """`value` as the key's own type, or None.

    Args:
        key: the key that is to hold it.
        value: the value.
        text: how a person wrote it, for the message; None: as Python would.

    Raises:
        UsageError: the value is of another type, not finite, or out of range.
    """
    shown = f"{key.name}={show(value) if text is None else _short(text) or repr(text)}"
    if value is None:
        if key.optional:
            return None
        raise UsageError(f"{shown}: a value is needed (default: {show(key.default)})")
    typed: Any
    complaint: str | None
    if key.kind is tuple:
        typed, complaint = _tuple(key, value)
    elif key.kind is dict:
        typed = _arguments(key.name, value) if isinstance(value, Mapping) else None
        complaint = None
    else:
        typed = _scalar(key.kind, value)
        complaint = _unusable(typed)
    if typed is None:
        complaint = f"must be {_expected(key)}{' or None' if key.optional else ''}"
    elif complaint is None and key.check is not None:
        complaint = key.check(typed)
    if complaint is not None:
        raise UsageError(f"{shown} {complaint}")
    return typed


def check_argument(key: str, name: str) -> None:
    """Refuses a name inside the free-form `key` that no keyword argument can have.

    Raises:
        UsageError: `name` is not an identifier, or a word of Python's own.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UsageError(f"{key}.{name}: {name!r} cannot be the name of an argument")


def show(value: Any) -> str:
    """`value` as Python writes it, on one line and not too long."""
    return _short(repr(value))


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:60]}...{text[-12:]}"


def _collect(values: Mapping[str, Any], prefix: str, flat: dict[str, Any]) -> None:
    for name, value in values.items():
        dotted = f"{prefix}{name}"
        if dotted in sections():
            if not isinstance(value, Mapping):
                raise UsageError(f"{dotted}={show(value)} must be a group of keys, a dict")
            _collect(value, f"{dotted}.", flat)
        elif dotted in key_docs():
            flat[dotted] = check_value(key_docs()[dotted], value)
        else:
            raise unknown_key(dotted)


def _section(cls: type, prefix: str, flat: Mapping[str, Any]) -> Any:
    hints = typing.get_type_hints(cls)
    return cls(
        **{
            field.name: _section(hints[field.name], f"{prefix}{field.name}.", flat)
            if f"{prefix}{field.name}" in sections()
            else flat[f"{prefix}{field.name}"]
            for field in dataclasses.fields(cls)
        }
    )


def _scalar(kind: type, value: Any) -> Any:
    """`value` as `kind`, or None where it is something else."""
    if kind in (bool, str):
        return value if isinstance(value, kind) else None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    if kind is float:
        try:
            return float(value) + 0.0  # + 0.0: -0.0 and 0.0 are one value, with one identity
        except OverflowError:
            return math.inf
    if isinstance(value, numbers.Integral):
        return int(value)
    whole = math.floor(value) if math.isfinite(value) else None
    return whole if whole == value else None


def _tuple(key: Key, value: Any) -> tuple[tuple[Any, ...] | None, str | None]:
    """The typed elements, None where `value` is no tuple; and a complaint about one of them."""
    if not isinstance(value, tuple | list):
        return None, None
    assert key.element is not None
    elements = tuple(_scalar(key.element, item) for item in value)
    for item, element in zip(value, elements, strict=True):
        if element is None:
            return elements, f"must hold only {_PLURAL[key.element]}, not {show(item)}"
        if complaint := _unusable(element):
            return elements, complaint
    return elements, None


def _unusable(value: Any) -> str | None:
    """The complaint about a number that no computation, or a text that no file can hold."""
    if isinstance(value, float) and not math.isfinite(value):
        return "must be finite"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "must fit in 64 bits"
    if isinstance(value, str) and ("\0" in value or not _is_unicode(value)):
        return "must be text without NUL bytes and without characters that UTF-8 cannot encode"
    return None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _expected(key: Key) -> str:
    return _SINGULAR[key.kind] if key.element is None else f"a tuple of {_PLURAL[key.element]}"


def _arguments(name: str, values: Mapping[Any, Any]) -> dict[str, Any]:
    for argument in values:
        check_argument(name, str(argument))
    return {str(key): _argument(f"{name}.{key}", value) for key, value in values.items()}


def _argument(name: str, value: Any) -> Any:
    """A value inside a free-form dict, lists as tuples: what JSON can hold and gives back equal."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if complaint := _unusable(value):
            raise UsageError(f"{name}={show(value)} {complaint}")
        return value
    if isinstance(value, Mapping):
        return _arguments(name, value)
    if isinstance(value, tuple | list):
        return tuple(_argument(name, item) for item in value)
    number = _scalar(int if isinstance(value, numbers.Integral) else float, value)
    complaint = _unusable(number)
    if number is None:
        complaint = "must be a number, text, true, false, None, or a list or dict of these"
    if complaint is not None:
        raise UsageError(f"{name}={show(value)} {complaint}")
    return number


def _check_across(config: Config) -> None:
    train = config.train
    if train.epochs is not None and train.steps is not None:
        raise UsageError(
            f"train.epochs={train.epochs:g} and train.steps={train.steps} are both set; set one "
            "and the other to None (--config.train.epochs=None or --config.train.steps=None)"
        )
    if train.epochs is None and train.steps is None:
        raise UsageError(
            "neither train.epochs nor train.steps is set; set one and leave the other at None "
            "(--config.train.epochs=10)"
        )
    _at_most_one("schedule.warmup", config.schedule.warmup_steps, config.schedule.warmup_epochs)
    _at_most_one("eval.every", config.eval.every_steps, config.eval.every_epochs)
    _at_most_one("checkpoint.every", config.checkpoint.every_steps, config.checkpoint.every_epochs)
    _check_class_names(config.data.class_names, config.data.num_classes)


def _at_most_one(stem: str, steps: int | None, epochs: float | None) -> None:
    if steps is not None and epochs is not None:
        raise UsageError(
            f"{stem}_steps={steps} and {stem}_epochs={epochs:g} are both set; set one and the "
            f"other to None (--config.{stem}_epochs=None or --config.{stem}_steps=None)"
        )


def _check_class_names(names: tuple[str, ...] | None, num_classes: int | None) -> None:
    if names is None:
        return
    if not names or not all(names):
        raise UsageError(f"data.class_names={show(names)} must hold one name a class, none empty")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"data.class_names holds {twice!r} twice; each class needs its own name")
    if num_classes is not None and num_classes != len(names):
        raise UsageError(
            f"data.class_names holds {len(names)} names but data.num_classes={num_classes}; "
            "make them agree or set data.num_classes to None"
        )
