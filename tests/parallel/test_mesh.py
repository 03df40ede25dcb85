import jax
import jax.numpy as jnp
import pytest
from helpers import data_mesh

from jaxtrain.errors import UsageError
from jaxtrain.parallel.mesh import (
    abstract_mesh,
    axis_sizes,
    build_mesh,
    local_rows,
    on_mesh,
    over_rows,
    pad_rows,
    within_memory,
)


@pytest.mark.parametrize(
    ("rows", "devices", "padded"), [(1, 1, 1), (1, 8, 8), (8, 8, 8), (9, 4, 12)]
)
def test_rows_are_padded_to_a_multiple_of_the_devices(rows, devices, padded):
    assert pad_rows(rows, data_mesh(jax.devices()[:devices])) == padded


@pytest.mark.parametrize(
    ("text", "devices", "sizes"),
    [
        ("data=-1", 1, (1, 1, 1)),
        ("data=-1", 8, (8, 1, 1)),
        ("data=4,model=2", 8, (4, 1, 2)),
        (" model=2 , data = -1 ", 8, (4, 1, 2)),
        ("fsdp=-1", 8, (1, 8, 1)),
        ("data=2,fsdp=2,model=-1", 8, (2, 2, 2)),
        ("fsdp=-1,data=8", 8, (8, 1, 1)),
    ],
)
def test_axis_sizes(text, devices, sizes):
    assert tuple(axis_sizes(text, devices).values()) == sizes
    assert abstract_mesh(text, devices).size == devices


@pytest.mark.parametrize(
    ("text", "devices", "said"),
    [
        ("data=3", 8, "takes 3 devices, but there are 8; set --config.parallel.mesh=data=-1"),
        ("data=8", 1, "takes 8 devices, but there is 1;"),
        ("data=-1,model=3", 8, "takes a multiple of 3 devices, but there are 8"),
        ("data=-1,fsdp=-1", 8, "only one axis can be -1"),
        ("data=4,data=2", 8, "'data=4' must be AXIS=SIZE, each of the axes data, fsdp, model"),
        ("date=8", 8, "'date=8' must be AXIS=SIZE"),
        ("data=0", 8, "'data=0' must be"),
        ("data=-2", 8, "'data=-2' must be"),
        ("data=8,", 8, "'' must be"),
        ("8", 8, "'8' must be"),
        ("data=99999999", 8, "must be"),
    ],
)
def test_a_mesh_that_is_none_is_refused(text, devices, said):
    with pytest.raises(UsageError, match=r"^parallel\.mesh=") as caught:
        axis_sizes(text, devices)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_process_reads_the_rows_of_its_devices():
    """Here there is one process, which has all of them, however the rows repeat over `model`."""
    for text in ("data=8", "data=2,fsdp=2,model=2"):
        assert local_rows(16, build_mesh(text, jax.devices())).tolist() == list(range(16))
    assert pad_rows(9, build_mesh("data=2,fsdp=2,model=2", jax.devices())) == 12


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
