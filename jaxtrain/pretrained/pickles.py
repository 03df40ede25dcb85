"""Pickles read as data.

A pickle is a program for a stack machine, and Python's own machine imports and calls whatever the
program names. This one knows the instructions for plain values, containers and tensors. A name
stays a name, a call is made only to the functions that the caller gives for known names, and all
else ends the reading. So nothing of a file is ever run.
"""

import dataclasses
import pickletools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from jaxtrain.errors import UsageError
from jaxtrain.pretrained.words import damaged, shown

Call = Callable[[tuple[Any, ...]], Any]


@dataclasses.dataclass(frozen=True)
class Name:
    """What a pickle names, such as `torch.FloatStorage`; it is not imported."""

    text: str


def load(content: bytes, known: Mapping[str, Call | None], persistent: Callable[[Any], Any]) -> Any:
    """The object of a pickle.

    Args:
        content: the pickle.
        known: the names that it may hold; to each what a call of it gives, from the tuple of its
            arguments, or None if it is not to be called. They check what they are given.
        persistent: the object that a persistent id stands for; likewise.

    Returns:
        None, bool, int, float, str, `Name` or what a call gave, in tuples, lists and dicts.

    Raises:
        UsageError: it holds another name or instruction, or is damaged; and what the caller's
            functions raise.
    """
    machine = _Machine(known, persistent)
    try:
        with warnings.catch_warnings(action="ignore"):  # it warns of escapes in a damaged name
            for opcode, argument, _ in pickletools.genops(content):
                if opcode.name == "STOP":
                    return machine.pop()
                machine.execute(opcode.name, argument)
    except (ValueError, LookupError) as error:
        raise damaged("its pickle") from error
    raise damaged("its pickle has no end")


def _refuse(what: str) -> UsageError:
    return UsageError(
        f"holds {what}, which is not read, as it could run code; save the weights alone, "
        "with PyTorch: torch.save(model.state_dict(), NEW)"
    )


class _Machine:
    """The stack, the memo, and what each instruction does to them."""

    def __init__(self, known: Mapping[str, Call | None], persistent: Callable[[Any], Any]) -> None:
        self._known = known
        self._persistent = persistent
        self._stack: list[Any] = []
        self._outer: list[list[Any]] = []  # the stacks below each mark
        self._memo: dict[int, Any] = {}

    def execute(self, opcode: str, argument: Any) -> None:
        """Carries out one instruction.

        Raises:
            UsageError: as for `load`.
            LookupError: it takes what is not there.
        """
        if opcode in _NO_MEANING:
            return
        if opcode in _LITERALS:
            self._stack.append(argument)
        elif opcode in _CONSTANTS:
            self._stack.append(_CONSTANTS[opcode]())
        elif opcode in _TUPLES:
            self._stack.append(tuple(reversed([self.pop() for _ in range(_TUPLES[opcode])])))
        elif opcode in _OTHERS:
            _OTHERS[opcode](self, argument)
        else:
            raise _refuse(f"the pickle instruction {opcode}")

    def pop(self) -> Any:
        return self._stack.pop()

    def mark(self, _: Any) -> None:
        self._outer.append(self._stack)
        self._stack = []

    def _since_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._outer.pop()
        return items

    def tuple(self, _: Any) -> None:
        items = self._since_mark()
        self._stack.append(tuple(items))

    def append(self, _: Any) -> None:
        self._extend([self.pop()])

    def appends(self, _: Any) -> None:
        self._extend(self._since_mark())

    def _extend(self, items: list[Any]) -> None:
        _of_kind(self._stack[-1], list).extend(items)

    def set_item(self, _: Any) -> None:
        value, key = self.pop(), self.pop()
        self._update([key, value])

    def set_items(self, _: Any) -> None:
        self._update(self._since_mark())

    def _update(self, items: list[Any]) -> None:
        target = _of_kind(self._stack[-1], dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            # The hash of nested tuples can take as long as the file's writer likes.
            target[_of_kind(key, str | int)] = value

    def put(self, place: int) -> None:
        self._memo[place] = self._stack[-1]

    def memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def get(self, place: int) -> None:
        self._stack.append(self._memo[place])

    def name(self, words: str) -> None:
        text = words.replace(" ", ".")
        if text not in self._known:
            raise _refuse(f"a {shown(text)}")
        self._stack.append(Name(text))

    def stack_name(self, _: Any) -> None:
        attribute, module = _of_kind(self.pop(), str), _of_kind(self.pop(), str)
        self.name(f"{module} {attribute}")

    def call(self, _: Any) -> None:
        arguments, function = _of_kind(self.pop(), tuple), _of_kind(self.pop(), Name)
        act = self._known[function.text]
        if act is None:
            raise _refuse(f"a call of {function.text}")
        self._stack.append(act(arguments))

    def build(self, _: Any) -> None:
        """Gives the top of the stack attributes: a state dict has its modules' versions there."""
        self.pop()
        _of_kind(self._stack[-1], dict)

    def persistent(self, _: Any) -> None:
        self._stack.append(self._persistent(self.pop()))


def _of_kind(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise damaged(f"a {type(value).__name__} in the wrong place of its pickle")
    return value


_NO_MEANING = {"PROTO", "FRAME"}
_LITERALS = {
    "BININT",
    "BININT1",
    "BININT2",
    "LONG1",  # LONG4 has more digits than Python would show
    "BINFLOAT",
    "BINUNICODE",
    "BINUNICODE8",
    "SHORT_BINUNICODE",
}
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_OTHERS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine.mark,
    "TUPLE": _Machine.tuple,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "MEMOIZE": _Machine.memoize,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "GLOBAL": _Machine.name,
    "STACK_GLOBAL": _Machine.stack_name,
    "REDUCE": _Machine.call,
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.persistent,
}
