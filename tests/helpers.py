"""Small data and models that several tests share."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxtrain import workdir
from jaxtrain.data import ArraySplit
from jaxtrain.parallel.mesh import build_mesh
from jaxtrain.workdir import DataIdentity

IMAGE_SHAPE = (6, 5, 1)
DATA = DataIdentity(("0", "1"), {"train": "a"})


def split(size: int, classes: int = 10, name: str = "test", seed: int = 0) -> ArraySplit:
    """`size` random images of `IMAGE_SHAPE`, with random labels below `classes`."""
    random = np.random.RandomState(seed)
    images = random.randint(0, 256, (size, *IMAGE_SHAPE)).astype(np.uint8)
    return ArraySplit(name, images, random.randint(0, classes, size).astype(np.int32), "memory")


def data_mesh(devices: Sequence[jax.Device]) -> Mesh:
    """A mesh of devices that all lie along `data`."""
    return build_mesh("data=-1", devices)


def open_run(
    path: Any,
    config: Any,
    *,
    extend: bool = False,
    say: Any = print,
    data: DataIdentity = DATA,
) -> Any:
    """`workdir.open_run` for data that is always the same, unless said."""
    return workdir.open_run(path, config, data, extend=extend, say=say)
