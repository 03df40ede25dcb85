"""A network's layers, as `jaxtrain check` shows them."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.extend
import jax.numpy as jnp

from jaxtrain.models import Model


@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer, for one image.

    Attributes:
        name: the path of its module, joined with `/`.
        kind: the module's class.
        output: shape of what it gives.
        parameters: how many it holds itself.
        flops: of its own matrix products and convolutions, forward; a multiply-add counts as 2.
    """

    name: str
    kind: str
    output: tuple[int, ...]
    parameters: int
    flops: int


def layers(model: Model, variables: dict[str, Any], image_shape: tuple[int, ...]) -> list[Layer]:
    """The layers that hold parameters, in the order in which they are called.

    A module that calls no other Linen module (as a whole NNX module is) is one layer.

    Args:
        model: the network.
        variables: abstract `TrainState.model`.
        image_shape: of one example, `(H, W, C)`.
    """
    called: dict[str, tuple[str, tuple[int, ...]]] = {}

    def record(function: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        output = function(*args, **kwargs)
        shapes = [leaf.shape for leaf in jax.tree.leaves(output) if hasattr(leaf, "shape")]
        if context.method_name == "__call__" and shapes:
            kind = type(context.module).__name__
            called["/".join(context.module.path)] = kind, shapes[0]
        return output

    image = jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)
    row = jax.ShapeDtypeStruct((1,), jnp.int32)
    mask = jax.ShapeDtypeStruct((1,), jnp.bool_)

    def forward(params: Any, collections: Any, image: Any, row: Any, mask: Any) -> Any:
        return model.apply(params, collections, image, row=row, key=None, mask=mask)[0]

    with nn.intercept_methods(record):
        jaxpr = jax.make_jaxpr(forward)(
            variables["params"], variables["collections"], image, row, mask
        )
    held: dict[str, int] = {}
    for path, leaf in jax.tree.leaves_with_path(variables["params"]):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        owner = max((n for n in called if not n or name.startswith(f"{n}/")), key=len)
        held[owner] = held.get(owner, 0) + math.prod(leaf.shape)
    flops: dict[str, int] = {}
    for scope, count in _products(jaxpr.jaxpr, ""):
        # A scope begins with the network's class, then holds the names of the modules, and between
        # them those of methods, as in `ResNet._stem`.
        parts = [part for part in scope.split("/")[1:] if "." not in part]
        names = ["/".join(parts[:end]) for end in range(len(parts), -1, -1)]
        owner = next(name for name in [*names, ""] if name in held or not name)
        flops[owner] = flops.get(owner, 0) + count
    return [
        Layer(name or type(model.module).__name__, kind, output, held[name], flops.get(name, 0))
        for name, (kind, output) in called.items()
        if name in held
    ]


def _products(jaxpr: Any, scope: str) -> Iterator[tuple[str, int]]:
    """The scope and the FLOPs of each matrix product and convolution."""
    for equation in jaxpr.eqns:
        own = str(equation.source_info.name_stack)
        inside = "/".join(filter(None, (scope, own)))
        outputs = math.prod(equation.outvars[0].aval.shape) if equation.outvars else 0
        shapes = [getattr(var.aval, "shape", ()) for var in equation.invars]
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            yield inside, 2 * outputs * math.prod(shapes[0][axis] for axis in contracted)
        elif equation.primitive.name == "conv_general_dilated":
            # A kernel's elements but for its output channels are summed up for each output.
            channels = shapes[1][equation.params["dimension_numbers"].rhs_spec[0]]
            yield inside, 2 * outputs * math.prod(shapes[1]) // channels
        else:
            turns = equation.params["length"] if equation.primitive.name == "scan" else 1
            for inner in _inner(equation.params.values()):
                for where, count in _products(inner, inside):
                    yield where, turns * count


def _inner(values: Any) -> Iterator[Any]:
    """The programs inside an equation; of several branches the first."""
    for value in values:
        if isinstance(value, jax.extend.core.ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, jax.extend.core.Jaxpr):
            yield value
        elif isinstance(value, tuple) and value:
            yield from _inner(value[:1])
