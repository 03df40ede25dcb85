"""How arrays lie on the devices: as values, in words, and drawn."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxtrain import rules
from jaxtrain.data import examples
from jaxtrain.parallel.layout import axes_of
from jaxtrain.parallel.mesh import AnyMesh, over_rows
from jaxtrain.setup import Run

# A drawing has at most this many rows of boxes, and lines of so many characters.
_MOST_ROWS = 8
_MOST_CHARACTERS = 68
# More devices, or ranges of them, in one box are shortened.
_MOST_RANGES = 4


@dataclasses.dataclass(frozen=True)
class Layout:
    """How one array is split over the devices.

    Attributes:
        name: of the array.
        shape: of the whole array.
        split: the mesh axes that split each dimension; none where it is whole.
        part: the shape of the part that one device holds.
        bytes_each: bytes that one device holds.
        devices: the numbers of the devices that hold each part: rows, columns, devices. The
            columns are the parts of the last dimension, the rows those of all others.
    """

    name: str
    shape: tuple[int, ...]
    split: tuple[tuple[str, ...], ...]
    part: tuple[int, ...]
    bytes_each: int
    devices: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def parts(self) -> int:
        """How many different parts there are."""
        return sum(map(len, self.devices))


def parameter_layouts(run: Run) -> list[Layout]:
    """The layout of every parameter, in the order of `jax.tree.leaves`."""
    params = run.abstract_one.params
    named = zip(rules.parameter_names(params), jax.tree.leaves(params), strict=True)
    return [layout(name, leaf, run.mesh) for name, leaf in named]


def batch_layout(run: Run) -> Layout:
    """The layout of the images of a training batch."""
    shape = (run.rows, *run.image_shape)
    dtype = examples.dtype_of(run.image_shape)
    images = jax.ShapeDtypeStruct(shape, dtype, sharding=over_rows(run.mesh))
    return layout("batch", images, run.mesh)


def layout(name: str, leaf: jax.ShapeDtypeStruct, mesh: AnyMesh) -> Layout:
    """The layout of an abstract array with a `NamedSharding` on `mesh`."""
    split = _split(leaf, mesh)
    part = leaf.sharding.shard_shape(leaf.shape)
    return Layout(
        name=name,
        shape=tuple(leaf.shape),
        split=split,
        part=part,
        bytes_each=math.prod(part) * leaf.dtype.itemsize,
        devices=_holders(split, mesh),
    )


def most_split(layouts: Sequence[Layout]) -> Layout:
    """The one of the most parts; among equals the largest."""
    return max(layouts, key=lambda one: (one.parts, math.prod(one.shape)))


def split_text(split: Sequence[Sequence[str]]) -> str:
    """The split as `parallel.rules` writes it: `-,model`, or `replicated`."""
    if not any(split):
        return "replicated"
    return ",".join("+".join(axes) or "-" for axes in split)


def shape_text(shape: Sequence[int]) -> str:
    """A shape as in `3x3x64`; a number has `1`."""
    return "x".join(map(str, shape)) or "1"


def draw(one: Layout) -> list[str]:
    """The parts as boxes that name the devices that hold them, within 68 characters.

    Above and beside them stands which part of a split dimension they are.
    """
    rows, columns = len(one.devices), len(one.devices[0])
    dimensions = range(len(one.shape))
    beside, above = _ranges(one, dimensions[:-1]), _ranges(one, dimensions[-1:])
    down = _shortened(rows, _MOST_ROWS)
    margin = max(map(len, beside))
    for ranges in range(_MOST_RANGES, 1, -1):  # the fewer, the narrower the boxes
        texts = [[_numbers(devices, ranges) for devices in row] for row in one.devices]
        cell = max(len(text) for text in [*above, *itertools.chain(*texts)])
        fitting = (_MOST_CHARACTERS - margin - 2) // (cell + 3)
        if fitting >= min(columns, 3):
            break
    across = _shortened(columns, fitting)
    lines = []
    if any(above):
        names = "   ".join(f"{_at(above, column):^{cell}}" for column in across)
        lines.append(f"{'':{margin}}   {names}".rstrip())
    rules = ["─" * (cell + 2)] * len(across)
    edge = " " * (margin + 1)
    lines.append(f"{edge}┌{'┬'.join(rules)}┐")
    for number, row in enumerate(down):
        if number and columns > 1:
            lines.append(f"{edge}├{'┼'.join(rules)}┤")
        cells = [_at(texts[row], column) if row is not None else "…" for column in across]
        boxes = " │ ".join(f"{text:^{cell}}" for text in cells)
        lines.append(f"{_at(beside, row):>{margin}} │ {boxes} │")
    return [*lines, f"{edge}└{'┴'.join(rules)}┘"]


def _split(leaf: jax.ShapeDtypeStruct, mesh: AnyMesh) -> tuple[tuple[str, ...], ...]:
    """The axes that split each dimension, but for those of one device."""
    entries: list[Any] = list(leaf.sharding.spec)
    entries += [None] * (len(leaf.shape) - len(entries))
    return tuple(
        tuple(axis for axis in axes_of(entry) if mesh.shape[axis] > 1) for entry in entries
    )


def _holders(split: Sequence[Sequence[str]], mesh: AnyMesh) -> Any:
    """`Layout.devices`."""
    sizes = tuple(mesh.shape.values())
    places = dict(zip(mesh.shape, np.indices(sizes).reshape(len(sizes), -1), strict=True))
    if isinstance(mesh, Mesh):
        numbers = [device.id for device in mesh.devices.flat]
    else:
        numbers = list(range(mesh.size))

    def part(dimensions: Sequence[Sequence[str]]) -> tuple[int, np.ndarray]:
        """How many parts these dimensions have, and which of them each device holds."""
        count, index = 1, np.zeros(mesh.size, np.int64)
        for axis in itertools.chain(*dimensions):
            count, index = count * mesh.shape[axis], index * mesh.shape[axis] + places[axis]
        return count, index

    rows, row = part(split[:-1])
    columns, column = part(split[-1:])
    held: list[list[list[int]]] = [[[] for _ in range(columns)] for _ in range(rows)]
    for number, at_row, at_column in zip(numbers, row, column, strict=True):
        held[at_row][at_column].append(number)
    return tuple(tuple(tuple(sorted(devices)) for devices in row) for row in held)


def _ranges(one: Layout, dimensions: range) -> list[str]:
    """What each part along some dimensions is of those that are split: `0-63`."""
    spans = [
        [
            f"{first}-{first + one.part[d] - 1}" if one.part[d] > 1 else str(first)
            for first in range(0, one.shape[d], one.part[d])
        ]
        for d in dimensions
        if one.split[d]
    ]
    return [",".join(parts) for parts in itertools.product(*spans)]


def _at(texts: Sequence[str], index: int | None) -> str:
    return "…" if index is None else texts[index]


def _shortened(count: int, most: int) -> list[int | None]:
    """All of `count` indices; or the first ones, None for those that are left out, and the last.

    Where only two have room, the last is left out as well.
    """
    if count <= most:
        return list(range(count))
    return [*range(most - 2), None, count - 1] if most > 2 else [0, None]


def _numbers(devices: Sequence[int], most: int) -> str:
    """Ascending numbers, neighbours joined, `most` texts at most: `0-3, 8-11, …, 24-27`."""
    runs: list[list[int]] = []
    for number in devices:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    if len(texts) > most:
        texts = [*texts[: most - 2], "…", texts[-1]]
    return ", ".join(texts)
