"""Optimizers, by an explicit table over Optax."""

import dataclasses
from collections.abc import Set
from typing import Any

import jax
import optax

from jaxtrain import rules
from jaxtrain.config.choices import refuse_unread, unknown
from jaxtrain.config.schema import OptimizerConfig
from jaxtrain.errors import UsageError
from jaxtrain.optimizer import by_name
from jaxtrain.optimizer.choice import Choice
from jaxtrain.optimizer.muon import scale_by_muon
from jaxtrain.optimizer.update import Optimizer


@dataclasses.dataclass(frozen=True)
class _Parts:
    """What an optimizer is put together from.

    Attributes:
        params: the parameters that are trained.
        decay: adds the weight decay to what it is given.
        layers: a tree like `params` of bools: whether a parameter's rate is adapted by layer.
    """

    params: Any
    decay: optax.GradientTransformation
    layers: Any


@dataclasses.dataclass(frozen=True)
class _Row(Choice):
    """An optimizer.

    Attributes:
        by_layer: whether it reads which parameters' rates are adapted by layer.
        holds_rate: as of `Optimizer`.
    """

    by_layer: bool = False
    holds_rate: bool = False


def _set(config: OptimizerConfig, *names: str) -> dict[str, float]:
    """The optional keys that are set; Optax has the defaults of the others."""
    values = {name: getattr(config, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _called(values: dict[str, float], **renamed: str) -> dict[str, float]:
    """The values by what Optax calls them, where that is not what the config does."""
    return {renamed.get(name, name): value for name, value in values.items()}


def _trace(config: OptimizerConfig, usual: float | None = None) -> list[Any]:
    """Momentum, if there is any."""
    momentum = usual if config.momentum is None else config.momentum
    if momentum is None:
        if config.nesterov:
            raise UsageError("optimizer.nesterov=True needs optimizer.momentum; set it to 0.9")
        return []
    return [optax.trace(momentum, nesterov=config.nesterov)]


def _at_rate() -> optax.GradientTransformationExtraArgs:
    """Multiplies by the learning rate of the update, before a momentum adds it up."""

    def update(
        updates: Any, state: Any, params: Any = None, *, rate: Any, **others: Any
    ) -> tuple[Any, Any]:
        return jax.tree.map(lambda each: rate * each, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def _sgd(config: OptimizerConfig, parts: _Parts) -> list[Any]:
    return [parts.decay, *_trace(config)]


def _adam(config: OptimizerConfig, parts: _Parts) -> list[Any]:
    return [parts.decay, optax.scale_by_adam(**_set(config, "b1", "b2", "eps"))]


def _adamw(config: OptimizerConfig, parts: _Parts) -> list[Any]:
    return [optax.scale_by_adam(**_set(config, "b1", "b2", "eps")), parts.decay]


def _rmsprop(config: OptimizerConfig, parts: _Parts) -> list[Any]:
    keys = _called(
        _set(config, "eps", "b2", "initial_accumulator"),
        b2="decay",
        initial_accumulator="initial_scale",
    )
    return [parts.decay, optax.scale_by_rms(**keys), _at_rate(), *_trace(config)]


def _adagrad(config: OptimizerConfig, parts: _Parts) -> list[Any]:
    keys = _called(
        _set(config, "eps", "initial_accumulator"),
        initial_accumulator="initial_accumulator_value",
    )
    return [parts.decay, optax.scale_by_rss(**keys)]


def _lion(config: OptimizerConfig, parts: _Parts) -> list[Any]:
    return [optax.scale_by_lion(**_set(config, "b1", "b2")), parts.decay]


def _lars(config: OptimizerConfig, parts: _Parts) -> list[Any]:
    keys = {"trust_coefficient": 0.001} | _set(config, "trust_coefficient")
    ratio = optax.masked(optax.scale_by_trust_ratio(**keys), parts.layers)
    return [parts.decay, ratio, _at_rate(), *_trace(config, usual=0.9)]


def _lamb(config: OptimizerConfig, parts: _Parts) -> list[Any]:
    keys = {"eps": 1e-6} | _set(config, "b1", "b2", "eps")
    ratio = optax.masked(optax.scale_by_trust_ratio(), parts.layers)
    return [optax.scale_by_adam(**keys), parts.decay, ratio]


def _muon(config: OptimizerConfig, parts: _Parts) -> list[Any]:
    muon = scale_by_muon(
        parts.params,
        momentum=_called(_set(config, "momentum"), momentum="beta"),
        adam=_set(config, "b1", "b2"),
        eps=_set(config, "eps"),
    )
    return [muon, parts.decay]


_ADAM = frozenset({"b1", "b2", "eps"})
_MOMENTUM = frozenset({"momentum", "nesterov"})

OPTIMIZERS = {
    "adagrad": _Row(_adagrad, frozenset({"eps", "initial_accumulator"})),
    "adam": _Row(_adam, _ADAM),
    "adamw": _Row(_adamw, _ADAM),
    "lamb": _Row(_lamb, _ADAM, by_layer=True),
    "lars": _Row(_lars, _MOMENTUM | {"trust_coefficient"}, by_layer=True, holds_rate=True),
    "lion": _Row(_lion, frozenset({"b1", "b2"})),
    "muon": _Row(_muon, _ADAM | {"momentum"}),
    "rmsprop": _Row(_rmsprop, _MOMENTUM | {"b2", "eps", "initial_accumulator"}, holds_rate=True),
    "sgd": _Row(_sgd, _MOMENTUM),
}
_COMMON = frozenset(
    {
        "name",
        "learning_rate",
        "weight_decay",
        "decay_rules",
        "rate_rules",
        "clip_norm",
        "skip_nonfinite",
    }
)


def build(config: OptimizerConfig, params: Any, frozen: Set[str] = frozenset()) -> Optimizer:
    """The optimizer that `config.name` names.

    The order is clipping, then the optimizer, with weight decay added to the gradient before it
    (L2 regularisation) or to its update after it (decoupled, Loshchilov and Hutter, 2019), then
    the factors of `rate_rules`. The learning rate comes from the step, which knows how many
    updates are behind it, even where some were skipped. With gradients g, decay d, parameters w:

        sgd      L2: w -= rate * trace(g + d w)
        rmsprop  L2: Hinton (2012), as Optax has it: eps is inside the root; the momentum adds up
                 what holds the rate already
        adagrad  L2: Duchi et al. (2011), with Optax's first accumulator and eps inside the root
        adam     L2: Kingma and Ba (2015)
        adamw    decoupled: Loshchilov and Hutter (2019), the decay times the rate as in PyTorch
        lion     decoupled: Chen et al. (2023)
        muon     decoupled: see `muon.scale_by_muon`; Adam's parameters decay by the same rules
        lars     L2: You et al. (2017); the momentum adds up what holds the rate already. As Optax
                 has it, a layer's ratio is trust_coefficient |w| / |g + d w|, where the paper has
                 |g| + d |w| below
        lamb     You et al. (2020): the decay is added to Adam's update, before that is scaled by
                 |w| / |update|

    lars and lamb adapt the rates of the parameters whose decay factor is above 0, whatever the
    decay, as their authors' programs do; the others, such as biases and scales, keep the rate
    itself.

    Args:
        config: the `optimizer` section.
        params: all parameters, abstract or not; their names are matched with the rules.
        frozen: names of those that are frozen, beside those whose rate factor is 0.

    Raises:
        UsageError: an unknown name, a key that it does not read, rules that do not fit, or
            nothing left to train.
    """
    row = _row(config)
    rates = by_name.factors(by_name.rate_rules(config, params))
    frozen = frozenset(frozen) | {name for name, factor in rates.items() if factor == 0.0}
    by_name.check_some_trained(frozen, params)
    trained = by_name.trained(params, frozen)
    decay, layers = optax.identity(), None
    if _reads_decay(config, row):
        decays = by_name.factors(by_name.decay_rules(config, params))
        layers = by_name.marked(trained, lambda name: decays[name] > 0.0)
        if config.weight_decay > 0.0:
            decay = by_name.decay(config.weight_decay, decays, trained)
    clip = [] if config.clip_norm is None else [optax.clip_by_global_norm(config.clip_norm)]
    parts = row.build(config, _Parts(trained, decay, layers))
    chain = optax.chain(*clip, *parts, *by_name.scaling(rates, trained))
    return Optimizer(
        transformation=optax.with_extra_args_support(chain),
        frozen=frozenset(frozen),
        holds_rate=row.holds_rate,
        skip_nonfinite=config.skip_nonfinite,
    )


def rules_in_effect(config: OptimizerConfig, params: Any) -> dict[str, list[rules.Matched]]:
    """What the rules of each key match, where they change anything.

    Raises:
        UsageError: as for `build`.
    """
    found = {}
    if _reads_decay(config, _row(config)):
        found[by_name.DECAY_KEY] = by_name.decay_rules(config, params)
    rates = by_name.rate_rules(config, params)
    if any(rule.value != 1.0 for rule in rates if rule.names):
        found[by_name.RATE_KEY] = rates
    return found


def _reads_decay(config: OptimizerConfig, row: _Row) -> bool:
    return config.weight_decay > 0.0 or row.by_layer


def _row(config: OptimizerConfig) -> _Row:
    if config.name not in OPTIMIZERS:
        raise unknown("optimizer.name", config.name, OPTIMIZERS)
    row = OPTIMIZERS[config.name]
    refuse_unread("optimizer", config, _COMMON, row.reads)
    return row
