"""Small data and models that several tests share."""

import dataclasses
from typing import Any

import numpy as np

from jaxtrain.data import ArraySplit

IMAGE_SHAPE = (6, 5, 1)


def split(size: int, classes: int = 10, name: str = "test", seed: int = 0) -> ArraySplit:
    """`size` random images of `IMAGE_SHAPE`, with random labels below `classes`."""
    random = np.random.RandomState(seed)
    images = random.randint(0, 256, (size, *IMAGE_SHAPE)).astype(np.uint8)
    return ArraySplit(name, images, random.randint(0, classes, size).astype(np.int32), "memory")


def replaced(config: Any, **values: Any) -> Any:
    """A config section with some of its keys replaced."""
    return dataclasses.replace(config, **values)
