"""Muon: the momentum of a matrix, made orthogonal."""

from typing import Any

import jax
import optax
import optax.contrib

from jaxtrain import rules
from jaxtrain.errors import UsageError


def scale_by_muon(
    params: Any, momentum: dict[str, float], adam: dict[str, float], eps: dict[str, float]
) -> optax.GradientTransformation:
    """Muon (Jordan et al., 2024) for the hidden layers' kernels, Adam for all other parameters.

    As `optax.contrib.muon` has it: five Newton-Schulz iterations on the Nesterov momentum of a
    kernel, times sqrt(max(1, outputs / inputs)); Adam has Nesterov momentum too, and the same
    rate. A kernel is a parameter named `kernel` of two or more dimensions, the last of which are
    its outputs, and all others its inputs: `[inputs, outputs]`, or HWIO of a convolution. As its
    author says, the head's is left to Adam, like embeddings, scales and biases.

    Args:
        params: the parameters that are trained.
        momentum: `beta` of the kernels' momentum, if it is not Optax's.
        adam: `b1` and `b2` of Adam, likewise.
        eps: `eps` of both, likewise.

    Raises:
        UsageError: there is no such kernel.
    """
    named = zip(rules.parameter_names(params), jax.tree.leaves(params), strict=True)
    labels = ["muon" if _is_kernel(name) and leaf.ndim > 1 else "adam" for name, leaf in named]
    if "muon" not in labels:
        raise UsageError(
            "optimizer.name='muon' finds nothing to train: no parameter is a kernel of two or more "
            "dimensions outside the head; set optimizer.name=adamw"
        )
    matrices = optax.contrib.scale_by_muon(**momentum, **eps, weight_dimension_numbers=_dimensions)
    return optax.partition(
        {
            "muon": optax.chain(matrices, optax.stateless_with_tree_map(_by_shape)),
            "adam": optax.scale_by_adam(**adam, **eps, nesterov=True),
        },
        jax.tree.unflatten(jax.tree.structure(params), labels),
    )


def _is_kernel(name: str) -> bool:
    return name.rpartition("/")[2] == "kernel" and not rules.in_head(name)


def _dimensions(kernels: Any) -> Any:
    """Which dimensions of each are its inputs and outputs."""
    return jax.tree.map(
        lambda kernel: optax.contrib.MuonDimensionNumbers(
            tuple(range(kernel.ndim - 1)), kernel.ndim - 1
        ),
        kernels,
    )


def _by_shape(update: jax.Array, param: Any) -> jax.Array:
    outputs = update.shape[-1]
    inputs = update.size // outputs
    return update * max(1.0, outputs / inputs) ** 0.5
