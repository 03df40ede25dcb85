"""The collectives in a compiled program, by its HLO text."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Mapping

KINDS = (
    "all-reduce",
    "reduce-scatter",
    "all-gather",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)

_HEADER = re.compile(r"(ENTRY )?%?(\S+) \(.*\) -> .*\{$")
# The operation is the first word before a parenthesis: those in a shape's layout follow no space.
_INSTRUCTION = re.compile(
    r"\s+(?P<root>ROOT )?%?(?P<name>\S+) = (?P<type>.*?) (?P<operation>[a-z][a-z0-9-]*)"
    r"\((?P<operands>.*?)\)(?P<attributes>.*)$"
)
_ARRAY = re.compile(r"\b(pred|[a-z]+?(\d+)[a-z0-9]*)\[([\d,]*)\]")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|\w+_computations?)=(\{[^}]*\}|[^,\s]+)")
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
# What the TPU compiler calls its reduce-scatter: a fusion of an all-reduce with a slice of it.
_REDUCE_SCATTER = "all-reduce-scatter"


@dataclasses.dataclass(frozen=True)
class Collectives:
    """Collectives of one kind.

    Attributes:
        kind: one of `KINDS`.
        count: how many of them one device takes part in.
        bytes: of what goes into them or comes out on one device, whichever is more, added up.
    """

    kind: str
    count: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class _Instruction:
    name: str
    type: str
    operation: str
    operands: tuple[str, ...]
    attributes: str
    is_root: bool


_Computation = Mapping[str, _Instruction]


def collectives(hlo: str) -> list[Collectives]:
    """Counts the collectives of a program, in the order of `KINDS`.

    Those in a loop count as often as it turns, if the program says so, else once.

    Args:
        hlo: the text of a compiled module for one device.
    """
    computations, entry = _computations(hlo)

    @functools.cache
    def found(name: str) -> tuple[tuple[str, int, int], ...]:
        """Kind, count and bytes of what a computation and those that it calls hold."""
        here = []
        for instruction in computations[name].values():
            kind = instruction.operation.removesuffix("-done")
            if kind in KINDS:
                is_scatter = name.startswith(_REDUCE_SCATTER)
                size = _bytes(instruction, computations[name])
                here.append(("reduce-scatter" if is_scatter else kind, 1, size))
            turns = _turns(instruction, computations)
            for called in _called(instruction):
                here += [(kind, n * turns, size * turns) for kind, n, size in found(called)]
        return tuple(here)

    everything = found(entry)
    counts = [(kind, [each for each in everything if each[0] == kind]) for kind in KINDS]
    return [
        Collectives(kind, sum(n for _, n, _ in each), sum(size for *_, size in each))
        for kind, each in counts
        if each
    ]


def _computations(hlo: str) -> tuple[dict[str, _Computation], str]:
    """Every computation by its name, and the name of the first to run."""
    computations: dict[str, dict[str, _Instruction]] = {}
    current: dict[str, _Instruction] = {}
    entry = ""
    for line in hlo.splitlines():
        header = _HEADER.match(line)
        if header is not None:
            current = computations.setdefault(header[2], {})
            entry = header[2] if header[1] else entry
            continue
        match = _INSTRUCTION.match(line)
        if match is not None:
            current[match["name"]] = _Instruction(
                name=match["name"],
                type=match["type"],
                operation=match["operation"],
                operands=tuple(re.findall(r"%([^\s,)]+)", match["operands"])),
                attributes=f"({match['operands']}){match['attributes']}",
                is_root=match["root"] is not None,
            )
    return {**computations}, entry


def _called(instruction: _Instruction) -> Iterable[str]:
    """The computations that an instruction runs; a loop's condition holds no collective."""
    if instruction.operation.endswith(("-done", "-update")):
        return
    for names in _CALLED.findall(instruction.attributes):
        yield from (name.strip(" %") for name in names.strip("{}").split(","))


def _turns(instruction: _Instruction, computations: Mapping[str, _Computation]) -> int:
    """How often an instruction runs what it calls; 1 if that is not known.

    A loop's condition compares its counter, which starts at 0, with a constant.
    """
    if instruction.operation != "while":
        return 1
    known = _TRIP_COUNT.search(instruction.attributes)
    if known is not None:
        return int(known[1])
    condition = re.search(r"condition=%?([^,\s]+)", instruction.attributes)
    inside = computations[condition[1]] if condition is not None else {}
    for compared in inside.values():
        if compared.is_root and "direction=LT" in compared.attributes:
            last = inside.get(compared.operands[-1])
            limit = re.match(r"\((\d+)\)", last.attributes) if last is not None else None
            if last is not None and last.operation == "constant" and limit is not None:
                return int(limit[1])
    return 1


def _bytes(instruction: _Instruction, inside: _Computation) -> int:
    """What a collective takes or gives, whichever is more."""
    started = inside.get(instruction.operands[0])
    is_done = instruction.operation.endswith("-done") and started is not None
    operands = started.operands if is_done and started is not None else instruction.operands
    taken = sum(_type_bytes(inside[name].type) for name in operands if name in inside)
    return max(taken, _type_bytes(instruction.type))


def _type_bytes(text: str) -> int:
    """Bytes of all arrays in a type, without the padding of its layout."""
    total = 0
    for name, bits, sizes in _ARRAY.findall(text):
        count = math.prod(map(int, filter(None, sizes.split(","))))
        total += -(-count * (8 if name == "pred" else int(bits)) // 8)
    return total
