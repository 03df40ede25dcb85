"""Networks by name, behind one small interface."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import jax.typing

from jaxtrain.config.choices import unknown
from jaxtrain.config.schema import ModelConfig
from jaxtrain.errors import UsageError
from jaxtrain.models import mlp, resnet, user
from jaxtrain.models.freezing import check_statistics, freezes_statistics, frozen_names

Variables = dict[str, Any]

Builder = Callable[[ModelConfig, int, jax.typing.DTypeLike], nn.Module]


def _resnet(name: str, config: ModelConfig, classes: int, dtype: jax.typing.DTypeLike) -> nn.Module:
    frozen = freezes_statistics(config)
    return resnet.build(name, config.resnet, classes, dtype, freeze_batch_stats=frozen)


MODELS: dict[str, Builder] = {
    "mlp": lambda config, classes, dtype: mlp.build(config.mlp, classes, dtype),
    **{name: functools.partial(_resnet, name) for name in resnet.ARCHITECTURES},
}


@dataclasses.dataclass(frozen=True)
class Model:
    """A network as pure functions.

    Attributes:
        module: the Linen module.
        dtype: what images are cast to before the module sees them.
        takes: names among `row`, `mask`, `train` and `axis` that the module's call takes.
    """

    module: nn.Module
    dtype: jax.typing.DTypeLike
    takes: frozenset[str]

    def init(self, key: jax.Array, image: jax.Array) -> tuple[Variables, Variables]:
        """Initial (parameters, other collections) for float images `[batch, H, W, C]`."""
        options = self.options(row=jnp.arange(image.shape[0]), train=False)
        variables = dict(self.module.init({"params": key, "dropout": key}, image, **options))
        variables = nn.meta.unbox(variables)
        return variables.pop("params", {}), variables

    def apply(
        self,
        params: Variables,
        collections: Variables,
        image: jax.Array,
        *,
        row: jax.Array,
        key: jax.Array | None,
        mask: jax.Array | None = None,
        axis: str | None = None,
    ) -> tuple[jax.Array, Variables]:
        """Runs the network; `key` is given while training, None in evaluation.

        A module that does not take `row` draws its dropout for each device on its own where
        devices have a program each (`axis`), and the variables that one without `axis` makes
        there, such as batch statistics, become the mean of the devices'.

        Args:
            params: the parameters.
            collections: all other variables (batch statistics).
            image: float `[batch, H, W, C]`, normalised.
            row: int32 `[batch]`, rows in the global batch.
            key: key of this step's dropout; None turns training behaviour off.
            mask: bool `[batch]`, rows that count in batch statistics; None: all.
            axis: the axis of the devices, if these are the rows of one of them.

        Returns:
            Logits float32 `[batch, classes]`, and the collections after the call (unchanged in
            evaluation).
        """
        variables = {"params": params, **collections}
        image = image.astype(self.dtype)
        options = self.options(row=row, mask=mask, train=key is not None, axis=axis)
        if key is None:
            logits: Any = self.module.apply(variables, image, **options)
            return logits.astype(jnp.float32), collections
        if axis is not None and "row" not in self.takes:
            key = jax.random.fold_in(key, jax.lax.axis_index(axis))
        logits, updated = self.module.apply(
            variables, image, rngs={"dropout": key}, mutable=list(collections), **options
        )
        updated = nn.meta.unbox(dict(updated))
        if axis is not None and "axis" not in self.takes:
            updated = jax.tree.map(functools.partial(_agreed, axis=axis), updated)
        return logits.astype(jnp.float32), updated

    def options(
        self,
        *,
        row: jax.Array,
        train: bool,
        mask: jax.Array | None = None,
        axis: str | None = None,
    ) -> Mapping[str, Any]:
        """Those of the options that the module's call takes; `mask` is all True if None."""
        if mask is None:
            mask = jnp.ones(row.shape, jnp.bool_)
        options = {"row": row, "mask": mask, "train": train, "axis": axis}
        return {name: value for name, value in options.items() if name in self.takes}


def _agreed(leaf: jax.Array, axis: str) -> jax.Array:
    """The mean of the devices' floats; of other numbers the largest."""
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return jax.lax.pmean(leaf, axis)
    return jax.lax.pmax(leaf, axis) if jnp.issubdtype(leaf.dtype, jnp.number) else leaf


def build(config: ModelConfig, num_classes: int) -> Model:
    """The model that `config.name` names.

    Args:
        config: the `model` section.
        num_classes: how many logits it must have.

    Raises:
        UsageError: an unknown name, arguments that do not fit, or `model.args` for a model that
            does not read them.
    """
    dtype = jnp.dtype(config.dtype)
    if ":" in config.name:
        offered = {
            "num_classes": num_classes,
            "dtype": dtype,
            "freeze_batch_stats": freezes_statistics(config),
        }
        module = user.build(config.name, config.args, offered)
    elif config.name not in MODELS:
        raise unknown("model.name", config.name, [*MODELS, "package.module:Class"])
    elif config.args:
        section = "resnet" if config.name in resnet.ARCHITECTURES else config.name
        raise UsageError(
            f"model.args={config.args} is set, but {config.name} does not read it; "
            f"set model.{section}.* instead"
        )
    else:
        module = MODELS[config.name](config, num_classes, dtype)
    return Model(module, dtype, user.call_parameters(module))


def frozen(config: ModelConfig, model: Model, variables: Variables) -> frozenset[str]:
    """Names of the parameters that `config.freeze` freezes; see `freezing.frozen_names`.

    Args:
        config: the `model` section.
        model: what it names.
        variables: its `params` and its other `collections`, abstract or not.

    Raises:
        UsageError: there is no head, or batch statistics that are to be frozen cannot be.
    """
    takes = "freeze_batch_stats" in user.class_parameters(model.module)
    check_statistics(config, variables["collections"], takes_freezing=takes)
    return frozen_names(config, variables["params"])
