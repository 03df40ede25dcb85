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
_LENGTH_END: Final = 4  # of a segment's length, from its marker on
_BASELINE: Final = 0xC0  # markers
_SCAN: Final = 0xDA
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
        frame: where a baseline frame's segment is: one that is not progressive, lossless or
            arithmetic; None: it is one of those, or cannot be told.
        scan: where the first scan begins, after all metadata; None: it cannot be told.
    """

    sides: Sides
    colours: str
    frame: int | None
    scan: int | None


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
    if colours not in _COLOURS:
        return None
    return Header((height, width), _COLOURS[colours], *_frame_and_scan(encoded))


def may_be_turned(encoded: bytes, header: Header) -> bool:
    """Whether there may be metadata that says that it is to be turned."""
    metadata = encoded[: header.scan]
    return any(mark in metadata for mark in _TURNING)


def reduction(header: Header, enough: Sides | None) -> int:
    """How many times smaller an image comes: 8, 4, 2 or 1; see `decode`."""
    if enough is None:
        return 1
    return next((by for by in _REDUCTIONS if _covers(_reduced(header.sides, by), enough)), 1)


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
    by = reduction(header, enough)
    height, width = _reduced(header.sides, by)
    try:
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
            encoded, header.colours, min_height=height, min_width=width, min_factor=by
        )
    except ValueError as error:
        if _CUT_SHORT in str(error):
            raise CutShortError from error
        return None
    assert pixels.shape[:2] == (height, width), (pixels.shape, header, enough)
    return pixels


def decode_top(encoded: bytes, header: Header, rows: int) -> NDArray[np.uint8] | None:
    """The first rows, equal to those of `decode`; None: it cannot be told apart from the rest.

    The decoder is told that the image is not higher, and so stops early. Where the file is broken
    is not found out: this is for files that were decoded as a whole before.

    Args:
        encoded: the file's content.
        header: its header.
        rows: how many are needed.

    Returns:
        uint8 `[rows or more, w, C]`.
    """
    mcu_rows, at = _mcu_rows(encoded, header), header.frame
    if mcu_rows is None or at is None:
        return None
    # One row of the coarsest component more: where it is enlarged, a row looks at both neighbours.
    height = min(rows + mcu_rows // 8, header.sides[0])
    shorter = bytearray(encoded)
    shorter[at + 5 : at + 7] = height.to_bytes(2)
    try:
        # What follows the rows is no damage.
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(shorter, header.colours, strict=False)
    except ValueError:
        return None
    return pixels


def _mcu_rows(encoded: bytes, header: Header) -> int | None:
    """Rows of the units that a baseline image in one scan is coded in; None: it is none."""
    frame, scan = header.frame, header.scan
    if frame is None or scan is None or encoded[scan + _LENGTH_END] != encoded[frame + 9]:
        return None
    return 8 * max(encoded[frame + 11 + 3 * k] & 0xF for k in range(encoded[frame + 9]))


def _frame_and_scan(encoded: bytes) -> tuple[int | None, int | None]:
    """Where a baseline frame's segment is, and that of the first scan."""
    frame, at, end = None, len(_START) - 1, len(encoded) - _LENGTH_END
    while at < end and encoded[at] == 0xFF:
        marker = encoded[at + 1]
        if marker == _SCAN:
            return frame, at
        if marker == _BASELINE:
            frame = at
        at += 2 + int.from_bytes(encoded[at + 2 : at + _LENGTH_END])
    return None, None


def _reduced(sides: Sides, by: int) -> Sides:
    return -(-sides[0] // by), -(-sides[1] // by)


def _covers(sides: Sides, others: Sides) -> bool:
    return sides[0] >= others[0] and sides[1] >= others[1]
