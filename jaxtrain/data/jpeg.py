"""JPEG images to pixels by libjpeg-turbo itself, which is faster than through Pillow.

The pixels are the same. What it does not decode, as CMYK, is left to Pillow, and so is what it
finds anything wrong with, be it as harmless as bytes that nothing needs.
"""

from typing import Final, NamedTuple

import numpy as np
import simplejpeg
from numpy.typing import NDArray

Sides = tuple[int, int]  # height, width

_START: Final = b"\xff\xd8\xff"
_COLOURS: Final = {"Gray": "GRAY", "YCbCr": "RGB", "RGB": "RGB"}
# How many times smaller an image may be decoded, without a look at most of its pixels.
_REDUCTIONS: Final = (8, 4, 2)
# What metadata that says how an image is to be turned has in it.
_TURNING: Final = (b"Exif\0", b"tiff:Orientation")
_CUT_SHORT: Final = "Premature end of JPEG file"


class Header(NamedTuple):
    """What a JPEG image says of itself.

    Attributes:
        sides: of the image, before it is turned.
        colours: as simplejpeg names what it is decoded to: `GRAY` or `RGB`.
    """

    sides: Sides
    colours: str


class CutShortError(Exception):
    """The file ends before its image does."""


def header(encoded: bytes) -> Header | None:
    """Reads a header; None: `decode` is not for this file."""
    if not encoded.startswith(_START):
        return None
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(encoded)
    except ValueError:
        return None
    return Header((height, width), _COLOURS[colours]) if colours in _COLOURS else None


def may_be_turned(encoded: bytes) -> bool:
    """Whether there may be metadata that says that it is to be turned."""
    return any(mark in encoded for mark in _TURNING)


def decode(encoded: bytes, header: Header, enough: Sides | None) -> NDArray[np.uint8] | None:
    """All pixels, without a turn; None: there is something wrong with it. Other threads run.

    Args:
        encoded: the file's content.
        header: its header.
        enough: sides that an image may be reduced to: it comes 8, 4 or 2 times smaller, its sides
            rounded up, if it is not smaller than that then. None: as it is.

    Returns:
        uint8 `[h, w, 3]`, or `[h, w, 1]` if it is grey.

    Raises:
        CutShortError: the file ends before its image does.
    """
    height, width = sides = header.sides
    reduction = 1
    if enough is not None:
        reduction = next((by for by in _REDUCTIONS if _covers(_reduced(sides, by), enough)), 1)
        height, width = _reduced(sides, reduction)
    try:
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
            encoded, header.colours, min_height=height, min_width=width, min_factor=reduction
        )
    except ValueError as error:
        if _CUT_SHORT in str(error):
            raise CutShortError from error
        return None
    assert pixels.shape[:2] == (height, width), (pixels.shape, header, enough)
    return pixels


def _reduced(sides: Sides, by: int) -> Sides:
    return -(-sides[0] // by), -(-sides[1] // by)


def _covers(sides: Sides, others: Sides) -> bool:
    return sides[0] >= others[0] and sides[1] >= others[1]
