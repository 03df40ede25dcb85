"""Lists of operations as one string: `flip|pad_crop(4)|affine(rotate=10, translate=0.1)`.

An operation is a frozen dataclass; its fields are the arguments, by position or by name. A table
gives each its name. Whoever owns the table says what the operations do.
"""

import ast
import dataclasses
import inspect
import math
import typing
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from jaxtrain.config.choices import unknown
from jaxtrain.config.values import show
from jaxtrain.errors import UsageError

T = TypeVar("T")


def parse(text: str, table: Mapping[str, type[T]], key: str) -> tuple[T, ...]:
    """Parses `NAME|NAME(VALUE, ARGUMENT=VALUE)|...`.

    Values are Python literals of the field's type: int, float (an int will do), bool, str,
    `tuple[X, ...]` or `tuple[X, Y]` of these; NaN and infinities are refused. A dataclass refuses a
    value by a ValueError from its `__post_init__`, in words that go on after the operation's text
    ("size must be above 0").

    Args:
        text: the operations; empty for none.
        table: name to frozen dataclass.
        key: the config key that holds the text, for the messages.

    Returns:
        One instance for each operation, in order.

    Raises:
        UsageError: one line with `key` and what is wrong: the syntax, a name, an argument, a type
            or a value.
    """
    if not text.strip():
        return ()
    return tuple(_operation(text, part, table, key) for part in _parts(text, key))


def signature(name: str, cls: type[Any]) -> str:
    """How to write an operation: `cutout(size: int, fill: float = 0.0)`."""
    parts = []
    for field, kind in _arguments(cls).items():
        default = inspect.signature(cls).parameters[field].default
        shown = "" if default is inspect.Parameter.empty else f" = {default!r}"
        parts.append(f"{field}: {_kind_name(kind)}{shown}")
    return f"{name}({', '.join(parts)})" if parts else name


def _parts(text: str, key: str) -> list[ast.expr]:
    """The operands of `|`; nothing else may stand before, between or after them."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Python only warns of some oddities, as of "\d"
            node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        if any(not part.strip() for part in text.split("|")):
            raise UsageError(f"{key}={show(text)} has an empty part; drop the extra '|'") from error
        raise _malformed(text, key) from error
    parts = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        parts.append(node.right)
        node = node.left
    parts.append(node)
    parts.reverse()
    if _between(text.strip(), parts) != ["", *["|"] * (len(parts) - 1), ""]:
        raise _malformed(text, key)
    return parts


def _between(text: str, parts: Sequence[ast.expr]) -> list[str]:
    """What stands before, between and after the parts: brackets and comments leave no node."""
    source = text.encode()  # offsets count bytes
    ends = [0, *(part.end_col_offset or 0 for part in parts)]
    starts = [*(part.col_offset for part in parts), len(source)]
    if "\n" in text or "\r" in text:  # offsets count from the start of a line
        return []
    return [source[end:at].decode().strip() for end, at in zip(ends, starts, strict=True)]


def _malformed(text: str, key: str) -> UsageError:
    return UsageError(
        f"{key}={show(text)} is not a list of operations; write NAME or NAME(VALUE, "
        "ARGUMENT=VALUE), with | between them"
    )


def _operation(text: str, node: ast.expr, table: Mapping[str, type[T]], key: str) -> T:
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    if not isinstance(call.func, ast.Name):
        raise _malformed(text, key)
    name = call.func.id
    if name not in table:
        raise unknown(key, name, table)
    cls = table[name]
    how = f"write {signature(name, cls)}"
    try:
        arguments = _bind(call, cls)
    except TypeError as error:
        raise UsageError(f"{key}: {name} {error}; {how}") from error
    kinds = _arguments(cls)
    values = {}
    for field, value in arguments.items():
        typed = _typed(kinds[field], value)
        if typed is None:
            kind = _kind_name(kinds[field])
            raise UsageError(f"{key}: {field}={show(value)} of {name} is not {kind}; {how}")
        values[field] = typed
    try:
        return cls(**values)
    except ValueError as error:
        shown = ast.get_source_segment(text.strip(), node)
        raise UsageError(f"{key}: {shown}: {error}") from error


def _bind(call: ast.Call, cls: type[Any]) -> dict[str, Any]:
    """The arguments by field; TypeError in words that go on after the operation's name."""
    fields = list(_arguments(cls))
    if len(call.args) > len(fields):
        raise TypeError(f"takes at most {len(fields)} arguments, not {len(call.args)}")
    found: dict[str, Any] = {}
    for field, node in (
        *zip(fields, call.args, strict=False),
        *((keyword.arg, keyword.value) for keyword in call.keywords),
    ):
        if field not in fields:
            raise TypeError(f"has no argument {field!r}")
        if field in found:
            raise TypeError(f"has {field!r} twice")
        try:
            found[field] = ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
            shown = ast.unparse(node)
            raise TypeError(f"has {field}={shown}, which is no plain value") from error
    parameters = inspect.signature(cls).parameters
    for field in fields:
        if field not in found and parameters[field].default is inspect.Parameter.empty:
            raise TypeError(f"misses {field!r}")
    return found


def _arguments(cls: type[Any]) -> dict[str, Any]:
    """Field to type, in order."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def _typed(kind: Any, value: Any) -> Any:
    """`value` as `kind`, or None where it is something else."""
    if typing.get_origin(kind) is tuple:
        return _tuple(typing.get_args(kind), value)
    if kind is float and type(value) is int:
        try:
            value = float(value)
        except OverflowError:
            return None
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        return None
    return value


def _tuple(kinds: tuple[Any, ...], value: Any) -> tuple[Any, ...] | None:
    if type(value) is not tuple:
        return None
    if kinds[1:] == (...,):
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value):
        return None
    typed = tuple(map(_typed, kinds, value))
    return None if None in typed else typed


def _kind_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)
