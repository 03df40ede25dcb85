"""The device mesh and how arrays lie on it."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

DATA_AXIS = "data"


def data_mesh(devices: Sequence[jax.Device]) -> Mesh:
    """A mesh of devices along `data`, with compiler-chosen (Auto) sharding inside."""
    return Mesh(np.array(devices), (DATA_AXIS,), axis_types=(AxisType.Auto,))


def replicated(mesh: Mesh) -> NamedSharding:
    """Every device holds a full copy."""
    return NamedSharding(mesh, PartitionSpec())


def over_rows(mesh: Mesh) -> NamedSharding:
    """The first axis, the batch's rows, is split over `data`."""
    return NamedSharding(mesh, PartitionSpec(DATA_AXIS))


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
