"""The optimizer of a run: gradients to new parameters."""

import dataclasses
from typing import Any

import jax
import optax

from jaxtrain.optimizer import by_name


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """Optax's gradient transformation for the parameters that are trained.

    Attributes:
        transformation: for those alone; its result is to be subtracted.
        frozen: names of the parameters that stay as they are: they need no gradients, and have no
            part in the optimizer's state.
        holds_rate: whether the transformation multiplies by the learning rate, which it is given
            as `rate`; else that is left to do.
        skip_nonfinite: updates in a row that the step skips at most where the loss or a gradient
            is not finite.
    """

    transformation: optax.GradientTransformationExtraArgs
    frozen: frozenset[str]
    holds_rate: bool
    skip_nonfinite: int = 0

    def trained(self, params: Any) -> Any:
        """The parameters that have gradients, None in the place of the others.

        Args:
            params: the parameters, or a tree like them.
        """
        return by_name.trained(params, self.frozen)

    def whole(self, trained: Any, params: Any) -> Any:
        """All parameters: `trained` ones, and of `params` those that are frozen."""
        if not self.frozen:
            return trained
        return jax.tree.map(
            lambda new, old: old if new is None else new, trained, params, is_leaf=_is_none
        )

    def init(self, params: Any) -> Any:
        """The state before the first update, of all parameters."""
        return self.transformation.init(self.trained(params))

    def update(
        self, gradients: Any, opt_state: Any, params: Any, rate: jax.Array | float
    ) -> tuple[Any, Any]:
        """One update.

        Args:
            gradients: of `trained(params)`.
            opt_state: the state before.
            params: all parameters.
            rate: the learning rate of this update.

        Returns:
            All parameters and the state after it.
        """
        trained = self.trained(params)
        updates, opt_state = self.transformation.update(gradients, opt_state, trained, rate=rate)
        factor = -1.0 if self.holds_rate else -rate
        new = optax.apply_updates(trained, jax.tree.map(lambda update: factor * update, updates))
        return self.whole(new, params), opt_state


def like_parameters(optimizer: Optimizer, opt_state: Any, values: Any, other: Any) -> Any:
    """Something for each array of an optimizer's state: its parameter's, where it has one.

    Args:
        optimizer: the optimizer.
        opt_state: its state, abstract or not.
        values: a tree like the parameters.
        other: for what belongs to no parameter, such as a counter.
    """
    return optax.tree_utils.tree_map_params(
        optimizer.transformation,
        lambda leaf, value: leaf if _is_masked(leaf) else value,
        opt_state,
        optimizer.trained(values),
        transform_non_params=lambda _: other,
        is_leaf=_is_masked,
    )


def _is_none(node: Any) -> bool:
    return node is None


def _is_masked(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode)
