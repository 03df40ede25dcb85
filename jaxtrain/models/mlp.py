"""A multi-layer perceptron."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import jax.typing

from jaxtrain.config.choices import unknown
from jaxtrain.config.schema import MlpConfig
from jaxtrain.models.layers import RowDropout

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "leaky_relu": jax.nn.leaky_relu,
    "mish": jax.nn.mish,
    "relu": jax.nn.relu,
    "selu": jax.nn.selu,
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
    "swish": jax.nn.swish,
    "tanh": jnp.tanh,
}


class Mlp(nn.Module):
    """Dense layers with an activation and dropout after each but the last.

    Attributes:
        hidden_sizes: units of each hidden layer.
        num_classes: units of the last layer.
        activation: applied after each hidden layer.
        dropout: share of hidden units dropped while training.
        dtype: dtype of the computation; parameters stay float32.
    """

    hidden_sizes: tuple[int, ...]
    num_classes: int
    activation: Callable[[jax.Array], jax.Array]
    dropout: float
    dtype: jax.typing.DTypeLike

    @nn.compact
    def __call__(self, image: jax.Array, *, row: jax.Array, train: bool) -> jax.Array:
        """Logits `[batch, num_classes]` of images `[batch, ...]` at global rows int32 `[batch]`."""
        hidden = image.reshape(image.shape[0], -1)
        for layer, size in enumerate(self.hidden_sizes):
            hidden = self.activation(
                nn.Dense(size, dtype=self.dtype, name=f"hidden_{layer}")(hidden)
            )
            hidden = RowDropout(self.dropout, name=f"dropout_{layer}")(hidden, row=row, train=train)
        return nn.Dense(self.num_classes, dtype=self.dtype, name="head")(hidden)


def build(config: MlpConfig, num_classes: int, dtype: jax.typing.DTypeLike) -> Mlp:
    """An `Mlp` from its config.

    Raises:
        UsageError: an unknown activation.
    """
    if config.activation not in ACTIVATIONS:
        raise unknown("model.mlp.activation", config.activation, ACTIVATIONS)
    return Mlp(
        hidden_sizes=config.hidden_sizes,
        num_classes=num_classes,
        activation=ACTIVATIONS[config.activation],
        dropout=config.dropout,
        dtype=dtype,
    )
