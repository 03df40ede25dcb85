"""Image files that say which one they are: every pixel has their number."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def write_image(path: Path, number: int, size: tuple[int, int] = (4, 4)) -> Path:
    """A grey image, `size` (height, width), of the value `number` below 256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(size, number, np.uint8)).save(path)
    return path


def write_half_jpeg(path: Path) -> Path:
    """A JPEG that opens, but ends in the middle of its pixels."""
    noise = np.random.RandomState(0).randint(0, 256, (40, 40, 3)).astype(np.uint8)
    Image.fromarray(noise).save(path, "JPEG")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


def number(image: NDArray[np.uint8]) -> int:
    """Which image it is."""
    (value,) = np.unique(image)
    return int(value)
