"""Parts of a computation that a compiler must not fuse."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax


def apart(key: jax.Array, function: Callable[..., jax.Array], *arguments: jax.Array) -> jax.Array:
    """The function's value, on a CPU compiled apart from what comes before and after it.

    There XLA would fuse it into loops that it cannot vectorise and that compute each pixel several
    times: eight operations take 5 ms apart and 75 ms together. It fuses nothing into a branch, and
    drops optimization barriers before it fuses.

    Args:
        key: typed key `[]`, of which the compiler cannot know what it is.
        function: pure, from arrays to one array.
        arguments: its own.
    """
    always = jax.random.key_data(key)[0] >> 31 < 2

    def branch(*given: jax.Array) -> jax.Array:
        shape = jax.eval_shape(function, *given)
        return lax.cond(always, function, lambda *_: jnp.zeros(shape.shape, shape.dtype), *given)

    return lax.platform_dependent(*arguments, cpu=branch, default=function)
