"""A picture of training examples, as they are and as a step trains on them."""

import dataclasses
import io
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from jaxtrain import data
from jaxtrain.augment import partners
from jaxtrain.data.examples import is_image, shape_text
from jaxtrain.errors import UsageError
from jaxtrain.files import atomic_write_bytes
from jaxtrain.keys import step_key
from jaxtrain.setup import Run
from jaxtrain.step import unit_interval

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

# Values of all images of a picture: they lie on the device as float32, a few times.
_MOST_PIXELS: Final = 2**26

# All in pixels of the picture.
_SIDE: Final = 112  # of a small image, about
_LARGEST_SIDE: Final = 256
_GRID: Final = (1200, 1100)  # width and height, at most, unless one example needs more
_MARGIN: Final = 12
_GAP: Final = 3
_TEXT: Final = 13
_LINE: Final = 18

_PAPER: Final = "#f2f2f2"
_INK: Final = "#202020"


@dataclasses.dataclass(frozen=True)
class Examples:
    """Rows of one step's batch, from the first on.

    Attributes:
        before: float32 `[rows, H, W, C]` in 0..1, as evaluation sees them, not yet normalised.
        after: the same, as the step trains on them.
        labels: int32 `[rows]`.
        others: int32 `[rows]`, labels of what is mixed in.
        shares: float32 `[rows]`, how much of `after` and of its label is not mixed in.
        changes: the keys that make the difference, with their values; none if there is none.
    """

    before: NDArray[np.float32]
    after: NDArray[np.float32]
    labels: NDArray[np.int32]
    others: NDArray[np.int32]
    shares: NDArray[np.float32]
    changes: tuple[str, ...]

    def captions(self, class_names: Sequence[str]) -> list[str]:
        """What each example is: `cat`, or `70% cat + 30% dog` where two are mixed."""
        return [
            class_names[label]
            if share == 1
            else f"{share:.0%} {class_names[label]} + {1 - share:.0%} {class_names[other]}"
            for label, other, share in zip(self.labels, self.others, self.shares, strict=True)
        ]


def write(run: Run, step: int, path: Path) -> dict[str, Any]:
    """Writes a PNG of as many examples of a step's batch as a screen shows, whole or not at all.

    Args:
        run: the run.
        step: an update of it, from 1 on.
        path: the file; one that is there is replaced.

    Returns:
        What it shows, as JSON values: file, step, examples, changes.

    Raises:
        UsageError: the examples are no images.
        DataError: an example cannot be read.
        JaxtrainError: the file cannot be written, see `atomic_write_bytes`.
    """
    if not is_image(run.image_shape):
        raise UsageError(
            f"--preview={path} shows images, but an example is {shape_text(run.image_shape)}; "
            "leave it out"
        )
    changed = run.dataset.train.random or bool(run.config.data.augment.strip())
    layout = _Layout.of(run.image_shape, pictures=2 if changed else 1)
    shown = examples(run, step, min(layout.columns * layout.rows, run.config.train.batch_size))
    heading = [
        f"step {step:,} of {run.plan.total_steps:,}: {len(shown.labels):,} of its "
        f"{run.config.train.batch_size:,} examples",
        f"left: as in evaluation; right: as trained on, by {' and '.join(shown.changes)}"
        if shown.changes
        else "trained on as they are: data.augment is empty",
    ]
    names = shown.captions(run.dataset.class_names)
    buffer = io.BytesIO()
    _grid(layout, heading, names, shown).save(buffer, "PNG")
    atomic_write_bytes(path, buffer.getvalue())
    return {
        "file": str(path),
        "step": step,
        "examples": len(shown.labels),
        "changes": list(shown.changes),
    }


def examples(run: Run, step: int, count: int) -> Examples:
    """The first rows of a step's batch, with the very changes that training makes.

    Args:
        run: the run.
        step: an update of it, from 1 on.
        count: number of rows, at most a batch; fewer are taken of very large images.

    Raises:
        DataError: an example cannot be read.
    """
    config, split, augment = run.config.data, run.dataset.train, run.fixed.augment
    count = max(1, min(count, _MOST_PIXELS // math.prod(split.image_shape)))
    read = -(-count // augment.together) * augment.together
    indices = run.sampler.indices(step)[:read]
    image = unit_interval(jnp.asarray(split.read(indices, run.sampler.row_seeds(step)[:read])))
    before, changes = image, []
    if split.random:
        middle = data.open_split(config, config.train_split, run.dataset.class_names)
        before = unit_interval(jnp.asarray(middle.read(indices)))
        changes.append(f"data.crop={config.crop}")
    if config.augment.strip():
        changes.append(f"data.augment={config.augment.strip()}")
    key = step_key(run.config.seed, step, "augment")
    row = jnp.arange(read, dtype=jnp.int32)

    @jax.jit
    def change(image: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        return augment.mix(key, augment(key, image, row), row, jnp.ones(read, bool))

    after, share = change(image)
    label = split.labels[indices]
    return Examples(
        before=np.asarray(before)[:count],
        after=np.asarray(after)[:count],
        labels=label[:count],
        others=label[:count] if share is None else np.asarray(partners(jnp.asarray(label)))[:count],
        shares=np.ones(count, np.float32) if share is None else np.asarray(share)[:count],
        changes=tuple(changes),
    )


@dataclasses.dataclass(frozen=True)
class _Layout:
    """A grid of cells, each a name above one picture or two side by side.

    Attributes:
        picture: width and height of a picture.
        cell: width and height of a cell, with the margin right of it and below it.
        columns: cells side by side.
        rows: cells on top of each other.
    """

    picture: tuple[int, int]
    cell: tuple[int, int]
    columns: int
    rows: int

    @classmethod
    def of(cls, image_shape: tuple[int, ...], pictures: int) -> "_Layout":
        height, width = image_shape[:2]
        longest = max(height, width)
        factor = max(1, round(_SIDE / longest)) if longest <= _LARGEST_SIDE else 0
        if factor:
            size = (width * factor, height * factor)
        else:
            size = (
                max(1, width * _LARGEST_SIDE // longest),
                max(1, height * _LARGEST_SIDE // longest),
            )
        cell = (pictures * (size[0] + _GAP) + _MARGIN, size[1] + _LINE + _MARGIN)
        columns, rows = (max(1, most // side) for most, side in zip(_GRID, cell, strict=True))
        return cls(size, cell, columns, rows)


def _grid(
    layout: _Layout, heading: Iterable[str], names: list[str], shown: Examples
) -> Image.Image:
    font = ImageFont.load_default(_TEXT)
    columns = min(layout.columns, len(names))
    rows = -(-len(names) // columns)
    width = max(columns * layout.cell[0], min(_GRID[0], 4 * _SIDE)) + _MARGIN
    lines = [line for text in heading for line in _wrapped(text, font, width - 2 * _MARGIN)]
    top = _MARGIN + len(lines) * _LINE + _MARGIN
    grid = Image.new("RGB", (width, top + rows * layout.cell[1]), _PAPER)
    draw = ImageDraw.Draw(grid)
    for at, line in enumerate(lines):
        draw.text((_MARGIN, _MARGIN + at * _LINE), line, _INK, font)
    pictures = [shown.before, shown.after] if shown.changes else [shown.after]
    for at, name in enumerate(names):
        left = _MARGIN + at % columns * layout.cell[0]
        upper = top + at // columns * layout.cell[1]
        text = _shortened(name, font, layout.cell[0] - _MARGIN)
        draw.text((left, upper), text, _INK, font)
        for images in pictures:
            grid.paste(_picture(images[at], layout.picture), (left, upper + _LINE))
            left += layout.picture[0] + _GAP
    return grid


def _picture(image: NDArray[np.float32], size: tuple[int, int]) -> Image.Image:
    """One image `[H, W, C]` in 0..1 at another size: the first three channels, else the first."""
    pixels = np.rint(image * 255).astype(np.uint8)
    pixels = pixels[..., :3] if pixels.shape[-1] >= 3 else pixels[..., 0]
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    larger = size[0] >= picture.width
    filter_ = Image.Resampling.NEAREST if larger else Image.Resampling.BILINEAR
    return picture.resize(size, filter_)


def _wrapped(text: str, font: Font, width: int) -> list[str]:
    """The text in lines that fit, broken after spaces and `|` where it can be."""
    lines = [""]
    for word in re.findall(r"[^ |]*[ |]|[^ |]+", text):
        if lines[-1] and font.getlength((lines[-1] + word).rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return lines


def _shortened(text: str, font: Font, width: int) -> str:
    """The text in one line, with dots for what does not fit."""
    text = " ".join(text.split())
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f"{text}...") > width:
        text = text[:-1]
    return f"{text.rstrip()}..."
