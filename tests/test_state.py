import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxtrain import state
from jaxtrain.errors import UsageError
from jaxtrain.models import Model
from jaxtrain.parallel.mesh import build_mesh
from jaxtrain.state import tree_bytes


def model(module, *takes) -> Model:
    return Model(module, jnp.float32, frozenset(takes))


class FailsInTraining(nn.Module):
    @nn.compact
    def __call__(self, image, train):
        if train:
            self.make_rng("noise")
        return nn.Dense(3)(image.reshape(image.shape[0], -1))


class Grows(nn.Module):
    @nn.compact
    def __call__(self, image, train):
        seen = self.variable("seen", "rows", lambda: jnp.zeros(1))
        if train:
            seen.value = jnp.zeros(image.shape[0])
        return nn.Dense(3)(image.reshape(image.shape[0], -1))


@pytest.mark.parametrize(
    ("module", "said"),
    [(FailsInTraining(), "noise"), (Grows(), "a training step changes")],
)
def test_a_model_that_only_fails_in_training_is_found_before(module, said):
    with pytest.raises(UsageError, match=r"^model\.name") as caught:
        state.abstract_model(model(module, "train"), (2, 2, 1), 3)
    assert said in str(caught.value)


def test_bytes_are_counted_without_arrays():
    tree = {"a": jax.ShapeDtypeStruct((3, 4), jnp.float32), "b": jax.ShapeDtypeStruct((), "int8")}
    assert tree_bytes(tree) == 49


class WholeNumbers(nn.Module):
    @nn.compact
    def __call__(self, image):
        scale = self.param("scale", lambda _: jnp.ones((), jnp.int32))
        return nn.Dense(3)(image.reshape(image.shape[0], -1)) * scale.astype(jnp.float32)


def test_a_checksum_brings_no_parts_together():
    """Not even those of a weight that no device could hold."""
    mesh = build_mesh("data=2,fsdp=4", jax.devices())
    lies = NamedSharding(mesh, PartitionSpec(None, "fsdp"))
    split = {"kernel": jax.ShapeDtypeStruct((6, 8), jnp.float32, sharding=lies)}
    program = jax.jit(state.fingerprint).lower(split).compile()
    assert "all-reduce" in program.as_text()
    assert "all-gather" not in program.as_text()
    kernel = jnp.arange(48, dtype=jnp.float32).reshape(6, 8)
    whole, parts = (
        state.fingerprint({"kernel": x}) for x in (kernel, jax.device_put(kernel, lies))
    )
    assert int(whole[0]) == int(parts[0])


def test_a_parameter_without_a_gradient_is_named():
    with pytest.raises(UsageError, match=r"parameter \['scale'\] is int32"):
        state.abstract_model(model(WholeNumbers()), (2, 2, 1), 3)
