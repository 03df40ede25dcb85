"""Optimizers, by an explicit table over Optax."""

from typing import Any

import jax
import optax

from jaxtrain import rules
from jaxtrain.config.choices import refuse_unread, unknown
from jaxtrain.config.schema import OptimizerConfig
from jaxtrain.errors import UsageError
from jaxtrain.optimizer.choice import Choice


def _set(config: OptimizerConfig, *names: str) -> dict[str, float]:
    """The optional keys that are set; Optax has the defaults of the others."""
    values = {name: getattr(config, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _sgd(config: OptimizerConfig, decay: optax.GradientTransformation) -> list[Any]:
    if config.momentum is None:
        if config.nesterov:
            raise UsageError("optimizer.nesterov=True needs optimizer.momentum; set it to 0.9")
        return [decay]
    return [decay, optax.trace(config.momentum, nesterov=config.nesterov)]


def _adam(config: OptimizerConfig, decay: optax.GradientTransformation) -> list[Any]:
    return [decay, optax.scale_by_adam(**_set(config, "b1", "b2", "eps"))]


def _adamw(config: OptimizerConfig, decay: optax.GradientTransformation) -> list[Any]:
    return [optax.scale_by_adam(**_set(config, "b1", "b2", "eps")), decay]


OPTIMIZERS = {
    "adam": Choice(_adam, frozenset({"b1", "b2", "eps"})),
    "adamw": Choice(_adamw, frozenset({"b1", "b2", "eps"})),
    "sgd": Choice(_sgd, frozenset({"momentum", "nesterov"})),
}
_COMMON = frozenset({"name", "learning_rate", "weight_decay", "decay_rules", "clip_norm"})


def build(config: OptimizerConfig, params: Any) -> optax.GradientTransformation:
    """The gradient transformation, whose result times the learning rate is to be subtracted.

    The order is clipping, then the optimizer, with weight decay added to the gradient before it
    (sgd, adam: L2 regularisation) or to its update after it (adamw: decoupled, Loshchilov and
    Hutter, 2019). The rate is left to the step, which knows how many updates are behind it, even
    where some were skipped.

    Args:
        config: the `optimizer` section.
        params: the parameters, abstract or not; their names are matched with the rules.

    Raises:
        UsageError: an unknown name, a key that it does not read, or rules that do not fit.
    """
    if config.name not in OPTIMIZERS:
        raise unknown("optimizer.name", config.name, OPTIMIZERS)
    choice = OPTIMIZERS[config.name]
    refuse_unread("optimizer", config, _COMMON, choice.reads)
    clip = [] if config.clip_norm is None else [optax.clip_by_global_norm(config.clip_norm)]
    parts = choice.build(config, _decay(config, params))
    return optax.chain(*clip, *parts)


def _decay(config: OptimizerConfig, params: Any) -> optax.GradientTransformation:
    """Weight decay: one masked transformation for each factor in the rules above 0."""
    factors = rules.parse_factors(config.decay_rules, "optimizer.decay_rules")
    if config.weight_decay == 0.0:
        return optax.identity()
    by_name = rules.resolve(factors, rules.parameter_names(params), "optimizer.decay_rules")
    parts = []
    for factor in sorted(set(by_name.values()) - {0.0}):
        mask = jax.tree.unflatten(
            jax.tree.structure(params), [value == factor for value in by_name.values()]
        )
        parts.append(optax.add_decayed_weights(config.weight_decay * factor, mask))
    return optax.chain(*parts)


def like_parameters(
    transformation: optax.GradientTransformation, opt_state: Any, values: Any, other: Any
) -> Any:
    """Something for each array of an optimizer's state: its parameter's, where it has one.

    Args:
        transformation: the optimizer.
        opt_state: its state, abstract or not.
        values: a tree like the parameters.
        other: for what belongs to no parameter, such as a counter.
    """
    return optax.tree_utils.tree_map_params(
        transformation,
        lambda _, value: value,
        opt_state,
        values,
        transform_non_params=lambda _: other,
    )
