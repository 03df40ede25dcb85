"""All randomness: every key is folded from (seed, step, purpose), and then from the global row.

Nothing here depends on a device, a process or the past, so a resumed run and a run on another
number of devices draw the same numbers.
"""

import jax

_PURPOSES = {"init": 0, "dropout": 1}


def step_key(seed: jax.Array | int, step: jax.Array | int, purpose: str) -> jax.Array:
    """The key of one purpose at one step.

    Args:
        seed: uint32 `[]`, the run's seed.
        step: int32 `[]`, the update that the key is for, 1 for the first; 0 before training.
        purpose: one of the names in `_PURPOSES`.

    Returns:
        A typed key `[]`.
    """
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), step), _PURPOSES[purpose])


def row_keys(key: jax.Array, row: jax.Array) -> jax.Array:
    """One key for each example: typed keys `[batch]` from a key `[]` and int32 rows `[batch]`."""
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, row)
