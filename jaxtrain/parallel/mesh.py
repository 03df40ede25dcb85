"""The device mesh, and how a batch lies on it."""

import contextlib
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from jaxtrain.errors import LayoutError, UsageError, one_line

# Neighbours in the last axis are neighbours in the machine: it is the one that talks most.
AXES = ("data", "fsdp", "model")
# The axes that split the rows of a batch; along `model` the rows are the same.
ROW_AXES = ("data", "fsdp")

AnyMesh = Mesh | AbstractMesh


def all_devices() -> list[jax.Device]:
    """The devices of all processes.

    Raises:
        UsageError: JAX finds none.
    """
    try:
        return jax.devices()
    except Exception as error:  # a backend may fail in its own way
        raise UsageError(
            f"JAX finds no device: {one_line(error)[:300]}; mend the installation or set "
            "JAX_PLATFORMS=cpu"
        ) from error


def check_processes(count: int) -> None:
    """Refuses a process that JAX connects with others that it knows nothing of.

    The hosts of a TPU slice find each other whether or not they were asked to.

    Raises:
        UsageError: JAX sees another number of processes than `count`.
    """
    all_devices()
    if jax.process_count() != count:
        raise UsageError(
            f"JAX sees the devices of {jax.process_count()} processes, but --distributed and what "
            f"was found make this one of {count}; start all with --distributed=on"
        )


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


def axis_sizes(text: str, devices: int) -> Mapping[str, int]:
    """Devices along each of `AXES`, from `parallel.mesh`.

    Args:
        text: `AXIS=SIZE,...`, as in `data=4,model=2`; an axis that it does not name has size 1,
            and one size may be -1: what the others leave.
        devices: how many there are.

    Raises:
        LayoutError: it is not of that form, or does not take exactly these devices.
    """
    sizes = dict.fromkeys(AXES, 1)
    given = [part.strip() for part in text.split(",")]
    names = [part.partition("=")[0].strip() for part in given]
    for part in given:
        match = re.fullmatch(r"(\w+)\s*=\s*(-1|[1-9][0-9]{0,6})", part)
        if match is None or match[1] not in AXES or names.count(match[1]) > 1:
            raise LayoutError(
                f"parallel.mesh={text!r}: {part!r} must be AXIS=SIZE, each of the axes "
                f"{', '.join(AXES)} at most once, with a size of 1 or more, or -1 for what is left"
            )
        sizes[match[1]] = int(match[2])
    free = [name for name, size in sizes.items() if size == -1]
    if len(free) > 1:
        raise LayoutError(f"parallel.mesh={text!r}: only one axis can be -1")
    taken = math.prod(size for size in sizes.values() if size != -1)
    if devices % taken if free else devices != taken:
        kind = "a multiple of " if free else ""
        raise LayoutError(
            f"parallel.mesh={text!r} takes {kind}{taken} devices, but there "
            f"{'is' if devices == 1 else 'are'} {devices}; set --config.parallel.mesh=data=-1 or "
            "another mesh for them"
        )
    if free:
        sizes[free[0]] = devices // taken
    return sizes


def build_mesh(text: str, devices: Sequence[jax.Device]) -> Mesh:
    """A mesh of all `devices` along `AXES`, with compiler-chosen (Auto) sharding inside.

    Raises:
        LayoutError: as for `axis_sizes`.
    """
    sizes = axis_sizes(text, len(devices))
    return jax.make_mesh(
        tuple(sizes.values()), AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices
    )


def abstract_mesh(text: str, devices: int) -> AbstractMesh:
    """Such a mesh of devices that are not here.

    Raises:
        LayoutError: as for `axis_sizes`.
    """
    sizes = axis_sizes(text, devices)
    return AbstractMesh(tuple(sizes.values()), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def on_cpu(mesh: AnyMesh) -> bool:
    """Whether the devices are the host's own processors; such as are not here, as those here."""
    device = jax.devices()[0] if isinstance(mesh, AbstractMesh) else mesh.devices.flat[0]
    platform: str = device.platform
    return platform == "cpu"


def row_parts(mesh: AnyMesh) -> int:
    """How many parts the rows of a batch are split in."""
    return math.prod(mesh.shape[axis] for axis in ROW_AXES)


def replicated(mesh: AnyMesh) -> NamedSharding:
    """Every device holds a full copy."""
    return NamedSharding(mesh, PartitionSpec())


def over_rows(mesh: AnyMesh) -> NamedSharding:
    """The first axis, the batch's rows, is split."""
    return NamedSharding(mesh, PartitionSpec(ROW_AXES))


def over_columns(mesh: AnyMesh) -> NamedSharding:
    """The second axis, the rows of each of several batches, is split."""
    return NamedSharding(mesh, PartitionSpec(None, ROW_AXES))


def over_devices(mesh: AnyMesh) -> NamedSharding:
    """The first axis is split over all devices: one part each."""
    return NamedSharding(mesh, PartitionSpec(AXES))


def pad_rows(rows: int, mesh: AnyMesh) -> int:
    """The least number of rows, `rows` or more, that divides over the mesh."""
    parts = row_parts(mesh)
    return -(-rows // parts) * parts


def on_mesh(tree: Any, mesh: AnyMesh) -> Any:
    """An abstract tree with every array replicated over the mesh."""
    return with_shardings(tree, jax.tree.map(lambda _: replicated(mesh), tree))


def with_shardings(tree: Any, shardings: Any) -> Any:
    """An abstract tree whose arrays lie as the tree `shardings` says."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        tree,
        shardings,
    )


def shardings(tree: Any) -> Any:
    """How the arrays of an abstract tree lie."""
    return jax.tree.map(lambda leaf: leaf.sharding, tree)


def local_rows(rows: int, mesh: Mesh) -> np.ndarray:
    """Which rows of a batch the devices of this process hold: int64, ascending."""
    parts = over_rows(mesh).addressable_devices_indices_map((rows,)).values()
    held = np.zeros(rows, np.bool_)
    for part in parts:
        held[part] = True
    return np.flatnonzero(held)


def bytes_per_device(tree: Any) -> int:
    """Bytes that each device holds of all arrays in an abstract tree."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )
