"""Small real data: the first digits of MNIST as a folder of IDX files, and a recipe for them."""

import struct
from pathlib import Path

import numpy as np

import jaxtrain
from jaxtrain.data import idx

MNIST = Path(jaxtrain.__file__).parent / "data" / "mnist"
TRAIN, TEST = 1000, 200

RECIPE = """
from jaxtrain.config import base_config

def get_config():
    config = base_config()
    config.data.source = "idx"
    config.data.path = {path!r}
    config.model.mlp.hidden_sizes = (32,)
    config.model.mlp.dropout = 0.2
    config.train.batch_size = 40
    config.train.steps = 20
    config.report.every_steps = 5
    return config
"""

CODES = {"uint8": 0x08, "int8": 0x09}


def idx_bytes(array: np.ndarray) -> bytes:
    """A uint8 or int8 array as the content of an IDX file."""
    header = struct.pack(f">HBB{array.ndim}I", 0, CODES[array.dtype.name], array.ndim, *array.shape)
    return header + array.tobytes()


def first_digits(split: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 `[count, 28, 28]` and labels uint8 `[count]` of `train` or `t10k`."""
    images = idx.read_images(MNIST / f"{split}-images-idx3-ubyte.gz")[:count, ..., 0]
    return images, idx.read_labels(MNIST / f"{split}-labels-idx1-ubyte.gz")[:count].astype(np.uint8)


def write_split(folder: Path, split: str, images: np.ndarray, labels: np.ndarray) -> None:
    """Writes the two files of a split."""
    folder.mkdir(exist_ok=True)
    (folder / f"{split}-images-idx3-ubyte").write_bytes(idx_bytes(images))
    (folder / f"{split}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))


def write_digits(folder: Path) -> None:
    """Writes the first `TRAIN` and `TEST` digits."""
    write_split(folder, "train", *first_digits("train", TRAIN))
    write_split(folder, "t10k", *first_digits("t10k", TEST))


def write_recipe(folder: Path, data: Path) -> None:
    """Writes `digits.py`, a recipe for the data in `data`."""
    (folder / "digits.py").write_text(RECIPE.format(path=str(data)))
