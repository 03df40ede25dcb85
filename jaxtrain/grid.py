"""A picture of images in a grid, with words above each and above all."""

import dataclasses
import io
import re
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

# All in pixels of the picture.
_SIDE: Final = 112  # of a small image, about
_LARGEST_SIDE: Final = 256
_SCREEN: Final = (1200, 1100)  # width and height, at most, unless one example needs more
_MARGIN: Final = 12
_GAP: Final = 3
_TEXT: Final = 13
_LINE: Final = 18

_PAPER: Final = "#f2f2f2"
_INK: Final = "#202020"


@dataclasses.dataclass(frozen=True)
class Layout:
    """A grid of cells, each a caption above one picture or some side by side.

    Attributes:
        picture: width and height of a picture.
        cell: width and height of a cell, with the margin right of it and below it.
        lines: lines of a caption.
        columns: cells side by side.
        rows: cells on top of each other that a screen has room for.
    """

    picture: tuple[int, int]
    cell: tuple[int, int]
    lines: int
    columns: int
    rows: int

    @classmethod
    def of(cls, image_shape: tuple[int, ...], *, pictures: int, lines: int) -> "Layout":
        """The layout for images of a shape, small ones some whole times as large, large ones less.

        Args:
            image_shape: (height, width, ...) of each.
            pictures: how many a cell has.
            lines: lines of a caption.
        """
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
        cell = (pictures * (size[0] + _GAP) + _MARGIN, size[1] + lines * _LINE + _MARGIN)
        columns, rows = (max(1, most // side) for most, side in zip(_SCREEN, cell, strict=True))
        return cls(size, cell, lines, columns, rows)


def png(
    layout: Layout,
    heading: Iterable[str],
    captions: Sequence[Sequence[str]],
    cells: Iterable[Sequence[NDArray[np.float32]]],
) -> bytes:
    """The grid as a PNG file, of as many rows as the cells need.

    Args:
        layout: of the grid.
        heading: lines above it, broken where they do not fit.
        captions: of each cell, `layout.lines` lines or fewer, cut where they do not fit.
        cells: the images of each cell, float `[H, W, C]` in 0..1; taken one by one.
    """
    font = ImageFont.load_default(_TEXT)
    columns = min(layout.columns, len(captions))
    rows = -(-len(captions) // columns)
    width = max(columns * layout.cell[0], min(_SCREEN[0], 4 * _SIDE)) + _MARGIN
    lines = [line for text in heading for line in _wrapped(text, font, width - 2 * _MARGIN)]
    top = _MARGIN + len(lines) * _LINE + _MARGIN
    grid = Image.new("RGB", (width, top + rows * layout.cell[1]), _PAPER)
    draw = ImageDraw.Draw(grid)
    for at, line in enumerate(lines):
        draw.text((_MARGIN, _MARGIN + at * _LINE), line, _INK, font)
    for at, (caption, images) in enumerate(zip(captions, cells, strict=True)):
        left = _MARGIN + at % columns * layout.cell[0]
        upper = top + at // columns * layout.cell[1]
        for number, line in enumerate(caption):
            text = _shortened(line, font, layout.cell[0] - _MARGIN)
            draw.text((left, upper + number * _LINE), text, _INK, font)
        for image in images:
            place = (left, upper + layout.lines * _LINE)
            grid.paste(_picture(image, layout.picture), place)
            left += layout.picture[0] + _GAP
    buffer = io.BytesIO()
    grid.save(buffer, "PNG")
    return buffer.getvalue()


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
