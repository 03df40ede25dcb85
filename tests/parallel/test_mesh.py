import jax
import jax.numpy as jnp
import pytest

from jaxtrain.errors import UsageError
from jaxtrain.parallel.mesh import data_mesh, on_mesh, over_rows, pad_rows, within_memory


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


def test_too_little_memory_is_said_with_a_fix():
    with (
        pytest.raises(UsageError, match=r"lower train\.batch_size or eval\.batch_size") as caught,
        within_memory(),
    ):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nallocating 9 bytes")
    assert "\n" not in str(caught.value)
    with pytest.raises(jax.errors.JaxRuntimeError), within_memory():
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")
