"""What the rules by parameter name say: decay, rate factors, and what is frozen."""

from collections.abc import Callable, Mapping, Set
from typing import Any

import jax
import optax

from jaxtrain import rules
from jaxtrain.config.schema import OptimizerConfig
from jaxtrain.errors import UsageError

DECAY_KEY = "optimizer.decay_rules"
RATE_KEY = "optimizer.rate_rules"


def decay_rules(config: OptimizerConfig, params: Any) -> list[rules.Matched]:
    """What each rule of `optimizer.decay_rules` matches.

    Raises:
        UsageError: rules that do not fit the parameters.
    """
    factors = rules.parse_factors(config.decay_rules, DECAY_KEY)
    return rules.match(factors, rules.parameter_names(params), DECAY_KEY)


def rate_rules(config: OptimizerConfig, params: Any) -> list[rules.Matched]:
    """What each rule of `optimizer.rate_rules` matches.

    Raises:
        UsageError: rules that do not fit the parameters.
    """
    factors = rules.parse_factors(config.rate_rules, RATE_KEY)
    return rules.match(factors, rules.parameter_names(params), RATE_KEY, "1")


def factors(matched: list[rules.Matched]) -> dict[str, float]:
    """Parameter name to factor."""
    return {name: rule.value for rule in matched for name in rule.names}


def trained(params: Any, frozen: Set[str]) -> Any:
    """A tree like `params` with None, which holds no leaf, in the place of what is frozen."""
    if not frozen:
        return params
    leaves, structure = jax.tree.flatten(params)
    named = zip(rules.parameter_names(params), leaves, strict=True)
    return jax.tree.unflatten(structure, [None if name in frozen else leaf for name, leaf in named])


def marked(params: Any, holds: Callable[[str], bool]) -> Any:
    """A tree like `params` of bools: what `holds` says of each name."""
    names = rules.parameter_names(params)
    return jax.tree.unflatten(jax.tree.structure(params), [holds(name) for name in names])


def decay(
    weight_decay: float, by_name: Mapping[str, float], params: Any
) -> optax.GradientTransformation:
    """Weight decay: one masked transformation for each factor above 0.

    Args:
        weight_decay: what the factors are on.
        by_name: the factor of each parameter.
        params: those that are trained.
    """
    return optax.chain(
        *(
            optax.add_decayed_weights(weight_decay * factor, mask)
            for factor, mask in _by_factor(by_name, params)
            if factor != 0.0
        )
    )


def scaling(by_name: Mapping[str, float], params: Any) -> list[optax.GradientTransformation]:
    """One masked transformation for each factor on the rate but 1; arguments as for `decay`."""
    return [
        optax.masked(optax.scale(factor), mask)
        for factor, mask in _by_factor(by_name, params)
        if factor != 1.0
    ]


def _by_factor(by_name: Mapping[str, float], params: Any) -> list[tuple[float, Any]]:
    """Each factor, and the mask of the parameters that have it."""
    named: dict[float, set[str]] = {}
    for name in rules.parameter_names(params):
        named.setdefault(by_name[name], set()).add(name)
    return [(factor, marked(params, named[factor].__contains__)) for factor in sorted(named)]


def check_some_trained(frozen: Set[str], params: Any) -> None:
    """Refuses a run that would change nothing.

    Raises:
        UsageError: every parameter is frozen.
    """
    if frozen >= set(rules.parameter_names(params)):
        raise UsageError(
            f"{RATE_KEY} freezes every parameter that model.freeze leaves; give some a factor "
            "above 0"
        )
