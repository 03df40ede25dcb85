"""A user's own module, `model.name=package.module:Class`, Linen or NNX.

The contract: `Class(**model.args)`, with `num_classes`, `dtype` and `freeze_batch_stats` passed as
well where the class takes them; called with images `[batch, H, W, C]`, or features `[batch, D]`,
and, where it takes it, `train`; returns logits `[batch, classes]`. An NNX class takes the keyword
`rngs` when it is made, as is usual there.

For `model.freeze=backbone` its last layer is named `head`, and if it has BatchNorm it takes
`freeze_batch_stats`: then that uses the running statistics, whatever `train` is
(`nn.BatchNorm(use_running_average=self.freeze_batch_stats or not train)`).
"""

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import flax.linen as nn

from jaxtrain.errors import UsageError


def build(name: str, args: Mapping[str, Any], offered: Mapping[str, Any]) -> nn.Module:
    """Imports and makes the module.

    Args:
        name: `package.module:Class`.
        args: arguments of the class.
        offered: other arguments, each passed on where the class takes it and `args` does not
            hold it.

    Raises:
        UsageError: the module or the class cannot be imported, is neither kind of module, or
            does not take `args`.
    """
    kind = _import(name)
    # NNX's metaclass hides the signature of the class itself.
    signature = inspect.signature(kind.__init__)
    arguments = {
        key: value for key, value in offered.items() if key in signature.parameters
    } | dict(args)
    try:
        if issubclass(kind, nn.Module):
            return kind(**arguments)
        signature.bind(None, rngs=None, **arguments)
    except TypeError as error:
        raise UsageError(f"model.args={dict(args)} does not fit {name}: {error}") from error
    from flax import nnx  # noqa: PLC0415 - see `_import`

    return nnx.bridge.to_linen(kind, **arguments)


def call_parameters(module: nn.Module) -> frozenset[str]:
    """Names that a module's `__call__` takes, to know whether it wants `train` or `row`."""
    return frozenset(inspect.signature(_class(module).__call__).parameters)


def class_parameters(module: nn.Module) -> frozenset[str]:
    """Names of the arguments that a module's class takes."""
    return frozenset(inspect.signature(_class(module).__init__).parameters)


def _class(module: nn.Module) -> Any:
    # The bridge's Linen module has its NNX class in this attribute.
    return getattr(module, "nnx_class", type(module))


def _import(name: str) -> Any:
    module_name, _, class_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise UsageError(
            f"model.name={name!r}: {module_name} cannot be imported "
            f"({type(error).__name__}: {error}); it must be installed or lie in the current folder"
        ) from error
    # Here, as loading it takes 0.15 s and only users' modules need it.
    from flax import nnx  # noqa: PLC0415

    kind = getattr(module, class_name, None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module | nnx.Module)):
        raise UsageError(
            f"model.name={name!r}: {module_name} has no Linen or NNX module class {class_name!r}"
        )
    return kind
