"""What converters are given is one flat program of primitives, with the same results."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from formats.networks import network
from formats.sources import images, reference, source
from jax import export

from jaxtrain.formats.tracing import trace


def program(function: Any, batch: Any, image_shape: tuple[int, ...]) -> Any:
    image = jax.ShapeDtypeStruct((batch, *image_shape), np.uint8)
    return jax.make_jaxpr(function)(image).jaxpr


def primitives(jaxpr: Any) -> list[str]:
    return [equation.primitive.name for equation in jaxpr.eqns]


@pytest.mark.parametrize(
    "model",
    [source("mlp"), source("resnet"), network("group_norm"), network("attention")],
    ids=["mlp", "resnet", "group_norm", "attention"],
)
def test_results_are_the_same(model):
    image = images(model.image_shape, 3)
    found = jax.jit(trace(model, 3))(image)
    np.testing.assert_allclose(found, reference(model, image), rtol=1e-5, atol=1e-5)
    assert found.dtype == jnp.float32


def test_calls_are_inlined_and_variables_folded():
    model = source("resnet")
    (batch,) = export.symbolic_shape("batch")
    jaxpr = program(trace(model, batch), batch, model.image_shape)
    assert set(primitives(jaxpr)) == {
        *("convert_element_type", "div", "sub", "mul", "add", "max"),
        *("conv_general_dilated", "reduce_sum", "dot_general"),
    }
    assert primitives(jaxpr).count("mul") == 9  # one a normalisation layer
    # Row numbers, which evaluation passes and nothing reads, are gone.
    assert all(equation.outvars[0].aval.dtype == jnp.float32 for equation in jaxpr.eqns)


def test_what_would_grow_is_not_computed_before():
    def apply(variables: Any, image: jax.Array) -> Any:
        table = jnp.broadcast_to(variables["row"] * 2, (1000, 5))
        return jnp.zeros((image.shape[0], 5)) + table.sum(0, keepdims=True)

    model = dataclasses.replace(
        source(), apply=apply, variables={"row": np.arange(5.0, dtype=np.float32)[None]}
    )
    jaxpr = program(trace(model, 2), 2, model.image_shape)
    assert "broadcast_in_dim" in primitives(jaxpr)
    assert all(variable.aval.size <= 5 for variable in jaxpr.constvars)
    assert "mul" not in primitives(jaxpr)


def test_a_primitive_is_replaced_by_its_rule_also_in_what_is_called():
    model = source("mlp")

    def squared(operand: Any, **params: Any) -> list[Any]:
        return [operand * operand]

    jaxpr = program(trace(model, 1, {"logistic": squared}), 1, model.image_shape)
    assert "logistic" not in primitives(jaxpr)
    assert primitives(jaxpr).count("mul") == 2 * 2  # a square and a product with it, twice


def test_names_of_modules_stay():
    model = source("resnet")
    jaxpr = program(trace(model, 1), 1, model.image_shape)
    scopes = [
        str(equation.source_info.name_stack)
        for equation in jaxpr.eqns
        if equation.primitive.name == "conv_general_dilated"
    ]
    assert any("stage2_block0/shortcut_conv" in scope for scope in scopes)
