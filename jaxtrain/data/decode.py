"""Image files to pixels: one function for training, evaluation and prediction."""

import io
import types
import warnings
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)

from jaxtrain.errors import DataError, one_line

# Imported here: threads that open the first images at once would all import every plugin there is.
_PLUGINS: Final[tuple[types.ModuleType, ...]] = (
    PngImagePlugin,
    JpegImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    WebPImagePlugin,
    TiffImagePlugin,
)
# Pillow tries them in this order.
_FORMATS: Final = tuple(
    plugin.__name__.rpartition(".")[2].removesuffix("ImagePlugin").upper() for plugin in _PLUGINS
)
