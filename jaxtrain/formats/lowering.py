"""What the formats share whose program is StableHLO, lowered by JAX."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import partial_eval

from jaxtrain.errors import UsageError, brief
from jaxtrain.formats.contract import Source


def by_name(variables: Any) -> dict[str, Any]:
    """The leaves of a tree by their paths, as in `params/head/kernel`."""
    leaves, _ = jax.tree.flatten_with_path(variables)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def apply_by_name(source: Source) -> Callable[[dict[str, Any], Any], Any]:
    """`source.apply` of variables as `by_name` has them, without what no logit depends on.

    A module may make initial values, such as an NNX one does that comes in by Flax's bridge; a
    program that is lowered would make them too.
    """
    structure = jax.tree.structure(source.variables)
    names = list(by_name(source.variables))

    def apply(weights: dict[str, Any], image: Any) -> Any:
        arguments = ([weights[name] for name in names], image)
        program = jax.make_jaxpr(
            lambda leaves, image: source.apply(jax.tree.unflatten(structure, leaves), image)
        )(*arguments)
        needed, _ = partial_eval.dce_jaxpr(program.jaxpr, [True], instantiate=True)
        call = core.jaxpr_as_fun(core.ClosedJaxpr(needed, program.consts))
        (logits,) = call(*jax.tree.leaves(arguments))
        return logits

    return apply


@contextlib.contextmanager
def lowering(name: str) -> Iterator[None]:
    """Lowers a model for the format `name`; the programs name no source files of this machine.

    Raises:
        UsageError: it cannot be lowered; a user's own module may fail in any way.
    """
    option = "jax_traceback_in_locations_limit"
    limit = getattr(jax.config, option)
    jax.config.update(option, 0)
    try:
        yield
    except Exception as error:
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in brief(error):
            raise  # no fault of the model's
        raise UsageError(
            f"format {name}: the model cannot be lowered for batches of any size "
            f"({brief(error)}); use operations that do not depend on the batch size"
        ) from error
    finally:
        jax.config.update(option, limit)
