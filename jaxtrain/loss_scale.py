"""Dynamic loss scaling for float16, whose gradients would vanish below 6e-8.

The loss is multiplied by a scale and the gradients are divided by it (Micikevicius et al., "Mixed
precision training", 2018). An update whose gradients are not finite is skipped and halves the
scale; after many finite ones in a row it doubles.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

# Those of PyTorch's GradScaler.
_FIRST = 2.0**16
_GROWTH_STEPS = 2000

# Gradients that are not finite with this scale never will be.
_LEAST = 1.0


@flax.struct.dataclass
class LossScale:
    """The scale, and what decides when it changes.

    Attributes:
        scale: float32 `[]`, a power of 2.
        finite_steps: int32 `[]`, updates since the scale changed.
        skipped: bool `[]`, whether the last update was skipped.
    """

    scale: jax.Array
    finite_steps: jax.Array
    skipped: jax.Array

    @classmethod
    def create(cls) -> "LossScale":
        """The scale before the first update."""
        return cls(
            scale=jnp.asarray(_FIRST, jnp.float32),
            finite_steps=jnp.zeros((), jnp.int32),
            skipped=jnp.zeros((), bool),
        )

    def unscaled(self, gradients: Any) -> tuple[Any, "LossScale", jax.Array]:
        """The gradients of the loss itself.

        Args:
            gradients: of the scaled loss, float32.

        Returns:
            The gradients (zeros if some are not finite), the scale for the next update, and
            whether they are not finite even with the least scale: bool `[]`.
        """
        finite = jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients)]).all()
        gradients = jax.tree.map(lambda leaf: jnp.where(finite, leaf / self.scale, 0.0), gradients)
        steps = self.finite_steps + 1
        grows = finite & (steps >= _GROWTH_STEPS)
        grown = jnp.where(grows, self.scale * 2.0, self.scale)
        following = LossScale(
            scale=jnp.where(finite, grown, jnp.maximum(self.scale / 2.0, _LEAST)),
            finite_steps=jnp.where(finite & ~grows, steps, 0),
            skipped=~finite,
        )
        return gradients, following, ~finite & (self.scale <= _LEAST)

    def unless_skipped(self, new: Any, old: Any) -> Any:
        """`new`, or `old` if the update was skipped: two trees of the same shape."""
        return jax.tree.map(lambda n, o: jnp.where(self.skipped, o, n), new, old)
