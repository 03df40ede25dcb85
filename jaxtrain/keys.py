"""All randomness: every key is folded from (seed, step, purpose), and then from the global row.

Nothing here depends on a device, a process or the past, so a resumed run and a run on another
number of devices draw the same numbers.
"""

import jax
import jax.numpy as jnp
import numpy as np

# 2^32 over the golden ratio, odd: its multiples modulo 2^32 are distinct and far apart.
WEYL = np.uint32(0x9E3779B9)

_PURPOSES = {"init": 0, "dropout": 1, "augment": 2}


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


def row_bits(key: jax.Array, row: jax.Array, size: int) -> jax.Array:
    """Random bits for each example: uint32 `[batch, size]`, from a key `[]` and rows as above.

    Each row has its own key, and its bits are a hash of that key and the position. This is for
    masks: on a CPU it takes a tenth of the time of `jax.random.bits`, whose Threefry costs the MLP
    a fifth of its step.
    """
    words = jax.random.key_data(row_keys(key, row))
    return mix(mix(words[:, :1] + weyl(size)[jnp.newaxis]) ^ words[:, 1:2])


def weyl(size: int) -> jax.Array:
    """Uint32 `[size]`: distinct, far apart numbers, to tell positions from each other in a hash."""
    return jax.lax.iota(jnp.uint32, size) * WEYL


def mix(value: jax.Array) -> jax.Array:
    """Hashes each uint32, one to one: the finaliser of MurmurHash3 (Appleby, 2011)."""
    value = (value ^ (value >> 16)) * jnp.uint32(0x85EBCA6B)
    value = (value ^ (value >> 13)) * jnp.uint32(0xC2B2AE35)
    return value ^ (value >> 16)
