"""What `model.freeze` keeps as it is."""

from typing import Any

from jaxtrain import rules
from jaxtrain.config.schema import ModelConfig
from jaxtrain.errors import UsageError


def frozen_names(config: ModelConfig, params: Any) -> frozenset[str]:
    """Names of the parameters that `config.freeze` freezes: `backbone` all but the head's.

    The head is the layer `head` at the top of a network; a user's own module names its last layer
    so, or names what is to be trained in `optimizer.rate_rules` instead.

    Args:
        config: the `model` section.
        params: the parameters, abstract or not.

    Raises:
        UsageError: there is no layer of that name.
    """
    if config.freeze is None:
        return frozenset()
    names = rules.parameter_names(params)
    backbone = frozenset(name for name in names if not rules.in_head(name))
    if len(backbone) == len(names):
        raise UsageError(
            f"model.freeze={config.freeze}: no layer of {config.name} is named {rules.HEAD}; name "
            "its last layer so, or unset it and set optimizer.rate_rules='LAYER=1; .*=0'; the "
            f"parameters are {', '.join(names)}"
        )
    return backbone


def freezes_statistics(config: ModelConfig) -> bool:
    """Whether BatchNorm is to use its running statistics in training as well, and keep them."""
    if config.freeze_batch_stats is None:
        return config.freeze is not None
    return config.freeze_batch_stats


def check_statistics(
    config: ModelConfig, collections: dict[str, Any], *, takes_freezing: bool
) -> None:
    """Refuses to freeze statistics that there are not, or that the model would move all the same.

    Args:
        config: the `model` section.
        collections: the model's variables that are no parameters.
        takes_freezing: whether its class has an argument `freeze_batch_stats`.

    Raises:
        UsageError: says what to do.
    """
    there = bool(collections.get("batch_stats"))
    if config.freeze_batch_stats and not there:
        raise UsageError(
            f"model.freeze_batch_stats=True is set, but {config.name} has no batch statistics; "
            "unset it with --config.model.freeze_batch_stats=None"
        )
    if freezes_statistics(config) and there and not takes_freezing:
        raise UsageError(
            f"model.freeze_batch_stats: {config.name} has batch statistics but takes no argument "
            "freeze_batch_stats, with which it is told to keep them; give its class one, or set "
            "--config.model.freeze_batch_stats=False"
        )
