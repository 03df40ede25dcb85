"""The training state and its creation."""

import functools
import math
from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxtrain import ema, keys
from jaxtrain.data.examples import is_image
from jaxtrain.errors import UsageError
from jaxtrain.loss_scale import LossScale
from jaxtrain.models import Model
from jaxtrain.optimizer import Optimizer
from jaxtrain.skips import Skips
from jaxtrain.tasks import Interval


@flax.struct.dataclass
class TrainState:
    """Everything that training carries from one step to the next.

    Attributes:
        step: int32 `[]`, finished updates.
        seed: uint32 `[]`, seed of every random choice.
        params: parameters, float32.
        collections: the model's other variables (batch statistics).
        opt_state: Optax's state.
        interval: sums of the report interval that is under way; part of the state, so that a run
            resumed in the middle of an interval reports the same numbers.
        loss_scale: None unless the model computes in float16.
        skips: None unless `optimizer.skip_nonfinite` is above 0.
        ema: an average of params and collections, by these names; None unless `train.ema_decay` is
            set.
    """

    step: jax.Array
    seed: jax.Array
    params: Any
    collections: Any
    opt_state: Any
    interval: Interval
    loss_scale: LossScale | None
    skips: Skips | None = None
    ema: dict[str, Any] | None = None

    @property
    def model(self) -> dict[str, Any]:
        """The part that evaluation needs; `weights` takes one of its sets."""
        kept = {"params": self.params, "collections": self.collections}
        # Checkpoints of runs that average nothing have no such entry.
        return kept if self.ema is None else {**kept, "ema": self.ema}

    @property
    def training(self) -> dict[str, Any]:
        """The part that only training needs."""
        kept = {
            "step": self.step,
            "seed": self.seed,
            "opt_state": self.opt_state,
            "interval": self.interval,
            "loss_scale": self.loss_scale,
        }
        # Checkpoints of runs that skip nothing have no such entry.
        return kept if self.skips is None else {**kept, "skips": self.skips}

    @classmethod
    def join(cls, model: dict[str, Any], training: dict[str, Any]) -> "TrainState":
        """The state whose two parts these are."""
        return cls(**model, **training)


def weights(model: dict[str, Any], which: str | None) -> dict[str, Any]:
    """Parameters and collections to use.

    Args:
        model: `TrainState.model`, abstract or not.
        which: `ema`, `raw`, or None for `ema` where there is one.

    Raises:
        UsageError: `ema`, but there is none.
    """
    if "ema" not in model and which == "ema":
        raise UsageError(
            "eval.weights=ema needs an average of the weights, which a run with train.ema_decay "
            "has; set eval.weights=None"
        )
    average: dict[str, Any] | None = None if which == "raw" else model.get("ema")
    raw = {"params": model["params"], "collections": model["collections"]}
    return raw if average is None else average


def init_model(model: Model, seed: jax.Array, image_shape: tuple[int, ...]) -> dict[str, Any]:
    """Initial parameters and collections, from the seed alone.

    Args:
        model: the network.
        seed: uint32 `[]`.
        image_shape: of one example, `(H, W, C)`.
    """
    image = jnp.zeros((1, *image_shape), model.dtype)
    params, collections = model.init(keys.step_key(seed, 0, "init"), image)
    return {"params": params, "collections": collections}


def abstract_model(model: Model, image_shape: tuple[int, ...], num_classes: int) -> dict[str, Any]:
    """Shapes and dtypes of `TrainState.model`; nothing is computed.

    Raises:
        UsageError: the model does not take images of this shape or does not give `num_classes`
            logits; a user's own module may fail in any way.
    """
    try:
        variables = jax.eval_shape(
            functools.partial(init_model, model, image_shape=image_shape), seed=np.uint32(0)
        )
        image = jax.ShapeDtypeStruct((2, *image_shape), jnp.float32)
        row = jax.ShapeDtypeStruct((2,), jnp.int32)
        key = jax.eval_shape(jax.random.key, 0)
        parts = (variables["params"], variables["collections"])
        evaluate = functools.partial(model.apply, key=None)
        logits, _ = jax.eval_shape(evaluate, *parts, image, row=row)
        _, collections = jax.eval_shape(model.apply, *parts, image, row=row, key=key)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())[:300]
        kind = "images" if is_image(image_shape) else "features"
        raise UsageError(
            f"model.name: the model cannot be built for {kind} of shape {image_shape} "
            f"({type(error).__name__}: {text})"
        ) from error
    if jax.tree.map(_kind, collections) != jax.tree.map(_kind, variables["collections"]):
        raise UsageError(
            "model.name: a training step changes the names, shapes or dtypes of the model's "
            f"variables in {', '.join(collections)}; keep them as they are made at first"
        )
    for path, leaf in jax.tree.leaves_with_path(variables["params"]):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise UsageError(
                f"model.name: parameter {jax.tree_util.keystr(path)} is {leaf.dtype}, which has no "
                "gradient; keep it in another collection than params"
            )
    if logits.shape != (2, num_classes):
        raise UsageError(
            f"model.name: for 2 images the model gives logits of shape {logits.shape}, but the "
            f"data has {num_classes} classes; make them of shape (2, {num_classes})"
        )
    return variables


def has_convolution(model: Model, variables: dict[str, Any], image_shape: tuple[int, ...]) -> bool:
    """Whether the model convolves; `variables` are those of `abstract_model`."""
    image = jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)
    row = jax.ShapeDtypeStruct((1,), jnp.int32)
    apply = functools.partial(model.apply, key=None)
    traced = jax.make_jaxpr(apply)(variables["params"], variables["collections"], image, row=row)
    return "conv_general_dilated" in str(traced)


def _kind(leaf: jax.ShapeDtypeStruct) -> tuple[tuple[int, ...], str]:
    return leaf.shape, str(leaf.dtype)


def create(
    model: Model,
    optimizer: Optimizer,
    seed: jax.Array,
    image_shape: tuple[int, ...],
    *,
    averages: bool = False,
    given: Mapping[str, Any] | None = None,
) -> TrainState:
    """The state before the first update. Pure: call it inside `jit`, or `jax.eval_shape` it.

    Args:
        model: the network.
        optimizer: what will update it.
        seed: uint32 `[]`, seed of every random choice.
        image_shape: of one example.
        averages: whether an average of the weights is kept.
        given: parameters and collections, or some of them, in place of those from the seed.
    """
    variables = init_model(model, seed, image_shape)
    if given is not None:
        variables = overlay(variables, given)
    average = ema.copied(variables) if averages else None
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        seed=jnp.asarray(seed, jnp.uint32),
        opt_state=optimizer.init(variables["params"]),
        interval=Interval.empty(),
        loss_scale=LossScale.create() if model.dtype == jnp.float16 else None,
        skips=Skips.create() if optimizer.skip_nonfinite else None,
        ema=average,
        **variables,
    )


def overlay(initial: Mapping[str, Any], imported: Mapping[str, Any]) -> dict[str, Any]:
    """Initial variables, with imported ones in the place of those that there are.

    Args:
        initial: nested mappings, as of `TrainState.model`.
        imported: some of those of the same model.
    """
    return {
        name: value
        if name not in imported
        else overlay(value, imported[name])
        if isinstance(value, Mapping)
        else imported[name]
        for name, value in initial.items()
    }


def tree_bytes(tree: Any) -> int:
    """Bytes of all arrays in a tree, abstract or not."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def all_finite(tree: Any) -> jax.Array:
    """Bool `[]`: whether every float of a tree is finite."""
    floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return jnp.all(jnp.array([jnp.isfinite(x).all() for x in floats]))


def fingerprint(tree: Any) -> jax.Array:
    """A checksum of each array of a tree: uint32 `[leaves]`, in the order of `jax.tree.leaves`.

    It sums position-dependent hashes of the elements' bits modulo 2^32, which is exact in any
    order, so it does not depend on how an array is sharded.
    """
    return jnp.array([_leaf_fingerprint(leaf) for leaf in jax.tree.leaves(tree)], jnp.uint32)


def _leaf_fingerprint(leaf: jax.Array) -> jax.Array:
    if leaf.dtype.itemsize == 8:  # with jax_enable_x64; two words each
        bits = jax.lax.bitcast_convert_type(leaf, jnp.uint32)
    else:
        width = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[leaf.dtype.itemsize]
        bits = leaf.view(width).astype(jnp.uint32)
    # Not `ravel`: it would bring together the parts of an array that is split over devices.
    position = jnp.zeros((), jnp.uint32)
    for dimension, size in enumerate(bits.shape):
        along = jax.lax.broadcasted_iota(jnp.uint32, bits.shape, dimension)
        position = position * jnp.uint32(size) + along
    return keys.mix(bits + position * keys.WEYL).sum(dtype=jnp.uint32)
