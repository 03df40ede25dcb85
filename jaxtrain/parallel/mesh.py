"""The device mesh and how arrays lie on it."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxtrain.errors import UsageError, one_line

DATA_AXIS = "data"


def local_devices() -> list[jax.Device]:
    """The devices of this process.

    Raises:
        UsageError: JAX finds none.
    """
    try:
        return jax.local_devices()
    except Exception as error:  # a backend may fail in its own way
        text = " ".join(str(error).split())[:300] or type(error).__name__
        raise UsageError(
            f"JAX finds no device: {text}; mend the installation or set JAX_PLATFORMS=cpu"
        ) from error


def memory_bytes(device: jax.Device) -> int:
    """What the device's memory holds; CPU devices share the host's."""
    stats = device.memory_stats() or {}
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(stats.get("bytes_limit", host))


@contextlib.contextmanager
def within_memory() -> Iterator[None]:
    """Says what to do where the devices' memory does not suffice for what is done inside.

    Raises:
        UsageError: it does not.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        text = one_line(error)
        if "RESOURCE_EXHAUSTED" not in text:
            raise
        raise UsageError(
            f"the devices' memory does not suffice ({text[:150]}); lower train.batch_size or "
            "eval.batch_size, raise train.accumulate, or set data.cache=memory"
        ) from error


def data_mesh(devices: Sequence[jax.Device]) -> Mesh:
    """A mesh of devices along `data`, with compiler-chosen (Auto) sharding inside."""
    return Mesh(np.array(devices), (DATA_AXIS,), axis_types=(AxisType.Auto,))


def on_cpu(mesh: Mesh) -> bool:
    """Whether the devices are the host's own processors."""
    platform: str = mesh.devices.flat[0].platform
    return platform == "cpu"


def replicated(mesh: Mesh) -> NamedSharding:
    """Every device holds a full copy."""
    return NamedSharding(mesh, PartitionSpec())


def over_rows(mesh: Mesh) -> NamedSharding:
    """The first axis, the batch's rows, is split over `data`."""
    return NamedSharding(mesh, PartitionSpec(DATA_AXIS))


def over_columns(mesh: Mesh) -> NamedSharding:
    """The second axis, the rows of each of several batches, is split over `data`."""
    return NamedSharding(mesh, PartitionSpec(None, DATA_AXIS))


def pad_rows(rows: int, mesh: Mesh) -> int:
    """The least number of rows, `rows` or more, that divides over the mesh."""
    devices: int = mesh.shape[DATA_AXIS]
    return -(-rows // devices) * devices


def on_mesh(tree: Any, mesh: Mesh) -> Any:
    """An abstract tree with every array replicated over the mesh."""
    everywhere = replicated(mesh)
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere), tree
    )
