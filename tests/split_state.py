"""A training state whose arrays are split over the devices of one or several processes."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxtrain.state import TrainState
from jaxtrain.tasks import Interval

ROWS = 32
META = {"class_names": ["a", "b"], "best": None}


def values(step: int, factor: float = 1.0) -> TrainState:
    """The whole state of a step, in NumPy."""
    noise = np.random.RandomState(step).randn(ROWS, 20).astype(np.float32)
    return TrainState(
        step=np.int32(step),
        seed=np.uint32(7),
        params={"kernel": noise * np.float32(factor), "bias": np.arange(5, dtype=np.float32)},
        collections={},
        opt_state=({"mu": noise + 1}, np.int32(step)),
        interval=jax.device_get(Interval.empty()),
        loss_scale=None,
    )


def sharding(leaf: Any, split: bool, devices: int | None = None) -> NamedSharding:
    """Rows of the large arrays over all devices, or a copy on each."""
    mesh = Mesh(np.array(jax.devices()[:devices]), ("fsdp",))
    rows = split and np.shape(leaf)[:1] == (ROWS,)
    return NamedSharding(mesh, PartitionSpec("fsdp") if rows else PartitionSpec())


def state(step: int, *, split: bool, factor: float = 1.0) -> TrainState:
    """The state of a step on the devices of all processes."""

    def put(leaf: Any) -> jax.Array:
        whole = np.asarray(leaf)
        return jax.make_array_from_callback(
            whole.shape, sharding(leaf, split), lambda index: whole[index]
        )

    return jax.tree.map(put, values(step, factor))


def abstract(*, split: bool, devices: int | None = None) -> TrainState:
    """How a state is to be restored."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=sharding(leaf, split, devices)
        ),
        values(1),
    )


def assert_is(found: TrainState, step: int, *, split: bool, devices: int | None = None) -> None:
    """Each part of the arrays that this process has is what was saved, and where it was asked."""
    whole = jax.tree.leaves(values(step))
    for leaf, value in zip(jax.tree.leaves(found), whole, strict=True):
        assert leaf.sharding == sharding(value, split, devices)
        for shard in leaf.addressable_shards:
            np.testing.assert_array_equal(shard.data, value[shard.index], strict=True)
