"""Updates that are skipped because the loss or a gradient is NaN or infinite."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp


@flax.struct.dataclass
class Skips:
    """How many updates were skipped.

    Attributes:
        in_a_row: int32 `[]`, the last ones, up to and including the last update.
        interval: int32 `[]`, those of the report interval that is under way.
        total: int32 `[]`, those of the run.
    """

    in_a_row: jax.Array
    interval: jax.Array
    total: jax.Array

    @classmethod
    def create(cls) -> "Skips":
        """Before the first update."""
        # An array each: a state with one buffer in two places cannot be donated.
        return cls(**{name: jnp.zeros((), jnp.int32) for name in ("in_a_row", "interval", "total")})

    def after(self, skipped: jax.Array, *, first: jax.Array | bool) -> "Skips":
        """After one more update.

        Args:
            skipped: bool `[]`, whether it was skipped.
            first: bool `[]`, whether it is the first of a report interval.
        """
        one = skipped.astype(jnp.int32)
        return Skips(
            in_a_row=jnp.where(skipped, self.in_a_row + 1, 0),
            interval=jnp.where(first, 0, self.interval) + one,
            total=self.total + one,
        )

    def unless_skipped(self, new: Any, old: Any) -> Any:
        """`new`, or `old` if the last update was skipped: two trees of the same shape."""
        return jax.tree.map(lambda n, o: jnp.where(self.in_a_row > 0, o, n), new, old)
