"""Networks of one operation each that jaxtrain's own have not, as users' modules may."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from formats.sources import CLASS_NAMES, images

from jaxtrain.formats import Source

SHAPE = (12, 10, 3)


class Network(nn.Module):
    """One operation between a convolution and a linear layer."""

    operation: str

    @nn.compact
    def __call__(self, image: jax.Array) -> jax.Array:
        hidden = nn.Conv(4, (3, 3))(image)
        match self.operation:
            case "max_pool":
                # Of negative values, below what a padding of zeros would be.
                hidden = nn.max_pool(-nn.relu(hidden) - 1, (3, 3), (2, 2), ((1, 1), (1, 0)))
            case "avg_pool":
                hidden = nn.avg_pool(hidden, (3, 2), (2, 2), ((1, 1), (0, 0)))
            case "pool_in_one_dimension":
                hidden = nn.max_pool(hidden.reshape(hidden.shape[0], -1, 4), (3,), (3,))
            case "group_norm":
                hidden = nn.GroupNorm(2, use_fast_variance=False)(hidden)
            case "squeeze_and_excite":
                weights = nn.sigmoid(nn.Dense(4)(hidden.mean((1, 2), keepdims=True)))
                hidden = hidden * weights
            case "attention":
                tokens = hidden.reshape(hidden.shape[0], -1, 4)
                hidden = nn.MultiHeadDotProductAttention(2)(tokens, tokens)
            case "loop":
                hidden = jax.lax.fori_loop(0, 3, lambda step, x: x * 0.5 + step, hidden)
            case "batch_dimension_last":
                hidden = jnp.roll(hidden.transpose(1, 2, 3, 0), 1).transpose(3, 0, 1, 2)
            case "token":
                token = self.param("token", nn.initializers.normal(), (1, 1, 10, 4))
                tokens = jnp.broadcast_to(token, (hidden.shape[0], 1, 10, 4))
                hidden = jnp.concatenate([tokens, hidden], 1)
            case "exact_gelu":
                hidden = nn.gelu(hidden, approximate=False)
            case "soft_sign":
                hidden = nn.soft_sign(hidden)
            case "fft":
                hidden = jnp.abs(jnp.fft.fft(hidden))
        return nn.Dense(len(CLASS_NAMES))(hidden.reshape(hidden.shape[0], -1))


def network(operation: str) -> Source:
    """A seeded one, calibrated on 100 images."""
    module = Network(operation)
    variables = module.init(jax.random.key(3), jnp.zeros((1, *SHAPE)))

    def apply(variables: Any, image: jax.Array) -> Any:
        return module.apply(variables, image.astype(jnp.float32) / 255.0)

    return Source(
        apply=apply,
        variables=jax.tree.map(np.asarray, variables),
        image_shape=SHAPE,
        class_names=CLASS_NAMES,
        calibration=lambda: images(SHAPE, 100, seed=1),
    )
