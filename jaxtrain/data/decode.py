"""Image files to pixels: one function for training, evaluation and prediction."""

import importlib.metadata
import io
import warnings
from collections.abc import Callable
from typing import Final

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from jaxtrain.data import jpeg
from jaxtrain.errors import DataError, one_line

PixelBox = tuple[int, int, int, int]  # left, top, right, bottom

MODES: Final = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's names by number of channels
# What image files are called, in lower case, where a name has to tell them from others.
SUFFIXES: Final = frozenset(
    {".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
)
_BY_RGB: Final = frozenset({"LAB", "HSV", "YCbCr"})  # Pillow converts them to nothing else
# What decides whether and how a file is decoded.
DECODER: Final = f"Pillow {PIL.__version__}, simplejpeg {importlib.metadata.version('simplejpeg')}"
# Where Pillow begins to warn of a decompression bomb, and refuses twice as many.
MAX_PIXELS: Final = 89_478_485
# Tried in this order. Named by their classes, whose import is what makes Pillow know them: threads
# that meet an unknown format at once would each have it import all its plugins.
_FORMATS: Final = tuple(
    str(kind.format)
    for kind in (
        JpegImageFile,
        PngImageFile,
        WebPImageFile,
        BmpImageFile,
        TiffImageFile,
        GifImageFile,
    )
)
_BLACK: Final = (0, 0, 0)
_ORIENTATION: Final = 0x0112  # tag of EXIF, and so are the keys
_TURNS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SWAPS_SIDES: Final = (
    Image.Transpose.TRANSPOSE,
    Image.Transpose.ROTATE_270,
    Image.Transpose.TRANSVERSE,
    Image.Transpose.ROTATE_90,
)
_TIFF_BITS: Final = 258
_TIFF_PHOTOMETRIC: Final = 262
_WHITE_IS_ZERO: Final = 0
_SHOWN_BYTES: Final = 12
_JPEG_COLOURS: Final = {1: "GRAY", 3: "RGB"}  # that need no conversion

# Of what it mends by itself Pillow warns, such as of damaged EXIF, once for each file; it raises an
# error for the rest. What the user's own filters say comes first.
warnings.filterwarnings("ignore", module=r"PIL\.", append=True)


def decode(
    encoded: bytes,
    channels: int,
    *,
    background: tuple[int, int, int] | None = _BLACK,
    upright: bool = True,
    enough: tuple[int, int] | None = None,
) -> NDArray[np.uint8]:
    """Decodes a JPEG, PNG, WebP, BMP, TIFF or GIF image, whatever its file is called.

    Of several images or frames it is the first one. Colours become grey as ITU-R 601-2 has it, CMYK
    becomes RGB without colour profiles, and of 16 bits the upper 8 remain. May be called from
    several threads at once.

    Args:
        encoded: the file's content.
        channels: channels of the result: 1, 3 or 4. With 4 the last one is alpha, 255 where the
            image is not transparent.
        background: colour, 0 to 255, behind a transparent image that becomes one of 1 or 3
            channels; None: its alpha is dropped, as TensorFlow does.
        upright: whether to turn and flip the image as its EXIF orientation says. A TIFF image is
            always turned.
        enough: (height, width) that is as good as the whole image: a JPEG image may come 2, 4 or 8
            times smaller, decided by its sides alone, but no smaller than this. None: as it is.

    Returns:
        uint8 `[h, w, channels]`, which may be read-only.

    Raises:
        DataError: it is no such image, not a whole one, one of more than 16 bits a channel, or one
            of more than `MAX_PIXELS`.
    """
    if not encoded:
        raise DataError("the image is empty: its file has 0 bytes")
    try:
        pixels = _by_turbo(encoded, upright, enough)
        if pixels is None:
            return _pixels(_by_pillow(encoded, background, upright, channels), channels)
        if pixels.shape[2] == channels:
            return pixels
        return _pixels(_picture(pixels), channels)
    except DataError:
        raise
    except UnidentifiedImageError as error:
        raise DataError(
            "the image is no JPEG, PNG, WebP, BMP, TIFF or GIF, or only the beginning of one: it "
            f"starts with {encoded[:_SHOWN_BYTES]!r}"
        ) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _bomb("") from error
    except MemoryError:
        raise
    # Decoders raise errors of every kind for data that is broken.
    except Exception as error:
        raise DataError(f"the image is broken: {one_line(error)}") from error


def decode_part(
    encoded: bytes,
    channels: int,
    choose: Callable[[tuple[int, int]], PixelBox],
    *,
    background: tuple[int, int, int] | None = _BLACK,
    upright: bool = True,
    enough: tuple[int, int] | None = None,
) -> NDArray[np.uint8]:
    """A part of what `decode` makes of a file that it has decoded before, maybe sooner.

    Whether the file is broken beside the part is not found out.

    Args:
        encoded: the file's content.
        channels: as for `decode`.
        choose: the part, by the (height, width) of the image.
        background: as for `decode`.
        upright: as for `decode`.
        enough: as for `decode`.

    Returns:
        uint8 `[h, w, channels]`, which may be read-only.

    Raises:
        DataError: as for `decode`.
    """
    header = jpeg.header(encoded)
    image = None
    if (
        header is not None
        and header.colours == _JPEG_COLOURS.get(channels)
        and jpeg.reduction(header, enough) == 1
        and not (upright and jpeg.may_be_turned(encoded, header))
    ):
        left, top, right, bottom = choose(header.sides)
        image = jpeg.decode_top(encoded, header, bottom)
    if image is None:
        image = decode(encoded, channels, background=background, upright=upright, enough=enough)
        left, top, right, bottom = choose(image.shape[:2])
    return image[top:bottom, left:right]


def rgb(background: tuple[int, ...]) -> tuple[int, int, int]:
    """`data.background`, one number or three, as three."""
    red, *others = background
    green, blue = others or (red, red)
    return red, green, blue


def _by_turbo(
    encoded: bytes, upright: bool, enough: tuple[int, int] | None
) -> NDArray[np.uint8] | None:
    """A JPEG image, grey or in colours; None: it is for Pillow, or for Pillow to say what it is."""
    header = jpeg.header(encoded)
    if header is None or header.sides[0] * header.sides[1] > MAX_PIXELS:
        return None
    turn = None
    if upright and jpeg.may_be_turned(encoded, header):
        turn = _turn(Image.open(io.BytesIO(encoded), formats=_FORMATS))
    if enough is not None and turn in _SWAPS_SIDES:
        enough = enough[::-1]
    try:
        pixels = jpeg.decode(encoded, header, enough)
    except jpeg.CutShortError as error:
        _opened(encoded)  # raises what it does for broken images, unless it fills them up
        raise DataError("the image is broken: the file ends before it does") from error
    if pixels is None or turn is None:
        return pixels
    turned = np.asarray(_picture(pixels).transpose(turn))
    return turned.reshape(*turned.shape[:2], pixels.shape[2])


def _by_pillow(
    encoded: bytes, background: tuple[int, int, int] | None, upright: bool, channels: int
) -> Image.Image:
    opened = _opened(encoded)
    image = _eight_bits(opened)
    turn = _turn(opened) if upright else None
    if turn is not None:
        image = image.transpose(turn)
    if background is not None and channels < 4 and image.has_transparency_data:
        behind = Image.new("RGBA", image.size, (*background, 255))
        image = Image.alpha_composite(behind, image.convert("RGBA"))
    return image


def _picture(pixels: NDArray[np.uint8]) -> Image.Image:
    """Grey `[h, w, 1]` or colours `[h, w, 3]`."""
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def _pixels(image: Image.Image, channels: int) -> NDArray[np.uint8]:
    if image.mode != MODES[channels]:
        if image.mode in _BY_RGB:
            image = image.convert("RGB")
        image = image.convert(MODES[channels])
    return np.asarray(image).reshape(image.height, image.width, channels)


def _opened(encoded: bytes) -> Image.Image:
    """The image with all its pixels; only that tells whether it is whole."""
    image = Image.open(io.BytesIO(encoded), formats=_FORMATS)
    if image.width * image.height > MAX_PIXELS:
        raise _bomb(f" ({image.width}x{image.height})")
    image.load()
    return image


def _eight_bits(image: Image.Image) -> Image.Image:
    """Scales grey of 16 bits down by a fixed factor; Pillow would clip it. Keeps what has 8."""
    if image.mode[0] not in "IF":
        return image
    bits, inverted = 16, False
    if isinstance(image, TiffImageFile):
        bits = image.tag_v2[_TIFF_BITS][0]  # 12, too
        inverted = image.tag_v2.get(_TIFF_PHOTOMETRIC, _WHITE_IS_ZERO) == _WHITE_IS_ZERO
    # "I": as Pillow before 11.3 has 16 bits of PNG, but 32 bits, or signed ones, of TIFF.
    if not image.mode.startswith("I;16") and not isinstance(image, PngImageFile):
        raise DataError(
            "the image has signed numbers, fractions or more than 16 bits a pixel (Pillow's mode "
            f"{image.mode}); save it with 8 or 16 bits"
        )
    grey = (np.asarray(image) >> (bits - 8)).astype(np.uint8)
    return Image.fromarray(255 - grey if inverted else grey)


def _turn(image: Image.Image) -> Image.Transpose | None:
    """How to turn an image, which unless it is a JPEG must be loaded, for it to be looked at."""
    if isinstance(image, TiffImageFile):
        return None  # Pillow has done it
    try:
        return _TURNS.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged EXIF makes the pixels no worse
        return None


def _bomb(size: str) -> DataError:
    return DataError(
        f"the image has too many pixels{size}: more than {MAX_PIXELS:,} are refused, as they may "
        "be a decompression bomb; scale it down"
    )
