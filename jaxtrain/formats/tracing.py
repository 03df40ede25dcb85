"""A model as one flat JAX program, for converters that know primitives alone."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax
from jax.extend import core
from jax.interpreters import partial_eval

from jaxtrain.errors import UsageError
from jaxtrain.formats.contract import Source

# A primitive's operands and parameters to its results.
Rule = Callable[..., Sequence[Any]]

# Primitives that call another program, which is one of these parameters.
_CALLS: Final = frozenset(
    {"call", "checkpoint", "closed_call", "custom_jvp_call", "custom_vjp_call", "jit"}
)
_CALLED: Final = ("call_jaxpr", "jaxpr")

# This leaves room for the rest of the file.
_MOST_BYTES: Final = 2_000_000_000


def trace(
    source: Source, batch: Any, rules: Mapping[str, Rule] | None = None
) -> Callable[[jax.Array], jax.Array]:
    """The model with its variables inside, as a function that uses no library but JAX.

    What it does is one sequence of primitives: calls are inlined, which takes what JAX knows of
    gradients out of the way; what depends on variables alone is computed now, unless it would
    grow; and what no result needs is left out.

    Args:
        source: the model.
        batch: images in a batch, an integer or a symbolic dimension.
        rules: what to do instead of primitives, by their names.

    Returns:
        The function of images or features, as `source.apply` takes them, to float32 logits
        `[batch, classes]`.
    """
    image = jax.ShapeDtypeStruct((batch, *source.image_shape), source.dtype)
    program = jax.make_jaxpr(lambda image: source.apply(source.variables, image))(image)

    def flat(image: jax.Array) -> list[Any]:
        return _evaluate(program.jaxpr, program.consts, [image], rules or {})

    flattened = jax.make_jaxpr(flat)(image)
    jaxpr, _ = partial_eval.dce_jaxpr(flattened.jaxpr, [True], instantiate=True)
    call = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, flattened.consts))
    return lambda image: call(image)[0]


def refuse_large(name: str, source: Source) -> None:
    """Refuses a model that is too large for a file of the format `name`.

    Raises:
        UsageError: its variables take almost 2 GB, what protobuf and FlatBuffers can hold.
    """
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(source.variables))
    if size > _MOST_BYTES:
        raise UsageError(
            f"format {name}: the model's variables take {size / 1e9:.2f} GB, but a file of this "
            "format holds 2 GB at most; export it as stablehlo or savedmodel"
        )


def _evaluate(
    jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], rules: Mapping[str, Rule]
) -> list[Any]:
    """Runs a program, with those that it calls inlined."""
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        with jax.named_scope(str(equation.source_info.name_stack)):
            results = _results(equation, operands, rules)
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _results(equation: Any, operands: Sequence[Any], rules: Mapping[str, Rule]) -> Sequence[Any]:
    name = equation.primitive.name
    if name in _CALLS:
        called = next(equation.params[key] for key in _CALLED if key in equation.params)
        # Most are closed; one that is not has no constants.
        return _evaluate(
            getattr(called, "jaxpr", called), getattr(called, "consts", ()), operands, rules
        )
    if name in rules:
        return rules[name](*operands, **equation.params)
    if _is_constant(equation, operands):
        with jax.ensure_compile_time_eval():
            results = equation.primitive.bind(*operands, **equation.params)
    else:
        results = equation.primitive.bind(*operands, **equation.params)
    return results if equation.primitive.multiple_results else [results]


def _is_constant(equation: Any, operands: Sequence[Any]) -> bool:
    """Whether a result depends on variables alone, and is no larger than they are."""
    if not operands or any(isinstance(operand, jax.core.Tracer) for operand in operands):
        return False
    sizes = [math.prod(variable.aval.shape) for variable in equation.outvars]
    known = all(isinstance(size, int) for size in sizes)
    return known and sum(sizes) <= sum(math.prod(atom.aval.shape) for atom in equation.invars)
