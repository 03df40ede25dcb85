"""An exponential moving average of a model's weights (Polyak and Juditsky, 1992)."""

from typing import Any

import jax
import jax.numpy as jnp


def copied(variables: Any) -> Any:
    """The average before the first update: copies, as one buffer cannot be donated twice."""
    return jax.tree.map(jnp.copy, variables)


def after(average: Any, variables: Any, decay: float, step: jax.Array) -> Any:
    """The average after an update: d x the old one + (1 - d) x the new weights.

    After update n it is d = min(decay, (1 + n) / (10 + n)), as of TensorFlow's
    ExponentialMovingAverage with `num_updates`: that of a short run, or of a run's beginning, is
    not held back by its first weights.

    Args:
        average: before it. Batch statistics and other variables are averaged like parameters;
            those that are no floats are taken as they are.
        variables: the new weights, a tree like it.
        decay: the largest d, in (0, 1).
        step: int32 `[]`, n, 1 for the first update.
    """
    count = step.astype(jnp.float32)
    rest = 1.0 - jnp.minimum(jnp.float32(decay), (1.0 + count) / (10.0 + count))

    def one(old: jax.Array, new: jax.Array) -> jax.Array:
        if not jnp.issubdtype(new.dtype, jnp.floating):
            return new
        return (old + rest * (new - old)).astype(new.dtype)

    return jax.tree.map(one, average, variables)
