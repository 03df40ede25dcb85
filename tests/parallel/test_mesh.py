import jax
import jax.numpy as jnp
import pytest

from jaxtrain.parallel.mesh import data_mesh, on_mesh, over_rows, pad_rows


@pytest.mark.parametrize(
    ("rows", "devices", "padded"), [(1, 1, 1), (1, 8, 8), (8, 8, 8), (9, 4, 12)]
)
def test_rows_are_padded_to_a_multiple_of_the_devices(rows, devices, padded):
    assert pad_rows(rows, data_mesh(jax.devices()[:devices])) == padded


def test_rows_are_split_and_states_are_copied():
    mesh = data_mesh(jax.devices())
    rows = jax.device_put(jnp.zeros((16, 3)), over_rows(mesh))
    assert {shard.data.shape for shard in rows.addressable_shards} == {(2, 3)}
    abstract = on_mesh({"w": jax.ShapeDtypeStruct((5,), jnp.float32)}, mesh)
    assert abstract["w"].sharding.is_fully_replicated
