"""The model of a run's checkpoint."""

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from jaxtrain import checkpoint, files, models, state, stored
from jaxtrain.config import Config, Variant
from jaxtrain.config.schema import ParallelConfig
from jaxtrain.errors import LayoutError, UsageError
from jaxtrain.files import AnyPath
from jaxtrain.formats import Source
from jaxtrain.models import Model
from jaxtrain.normalise import Normalise
from jaxtrain.parallel.layout import parameter_shardings
from jaxtrain.parallel.mesh import (
    all_devices,
    build_mesh,
    on_cpu,
    on_mesh,
    over_rows,
    pad_rows,
    shardings,
    with_shardings,
)
from jaxtrain.replicas import select


@dataclasses.dataclass(frozen=True)
class Restored:
    """A `Predictor` with its weights on the devices.

    Attributes:
        model: the network.
        normalise: what it sees of an example.
        variables: the parameters and collections that are used.
        weights: which those are, `ema` or `raw`; None: the run has no average of them.
        abstract: their shapes, dtypes and shardings.
        mesh: the devices.
        class_names: one name a class, in label order.
        image_shape: (height, width, channels), or (features,), of one example.
        step: finished updates of the weights.
        config: the config that they were trained with.
        directory: the folder of the checkpoint, and of others.
        replica: which of the run's replicas it is.
        variants: the replicas, one or more.
        every: the variables of all, stacked; None: there is one, or nobody asked for them.
    """

    model: Model
    normalise: Normalise
    variables: Any
    weights: str | None
    abstract: Any
    mesh: Mesh
    class_names: tuple[str, ...]
    image_shape: tuple[int, ...]
    step: int
    config: Config
    directory: AnyPath
    replica: int
    variants: tuple[Variant, ...]
    every: Any | None = None

    def logits(self, images: NDArray[Any]) -> NDArray[np.float32]:
        """The images' rows are split over the devices."""
        rows = np.zeros((pad_rows(len(images), self.mesh), *images.shape[1:]), images.dtype)
        rows[: len(images)] = images
        placed = jax.device_put(rows, over_rows(self.mesh))
        logits = jax.device_get(self._compiled(self.variables, placed))
        result: NDArray[np.float32] = logits[: len(images)]
        return result

    @property
    def unrolls(self) -> bool:
        """Whether replicas are to be compiled one after the other, as of `map_replicas`."""
        convolves = state.has_convolution(self.model, self.abstract, self.image_shape)
        return convolves and on_cpu(self.mesh)

    @functools.cached_property
    def _compiled(self) -> Callable[[Any, Any], Any]:
        return jax.jit(functools.partial(apply, self.model, self.normalise))

    def source(self, dtype: str | None, calibration: Callable[[], NDArray[Any]]) -> Source:
        """The model for exporters.

        Args:
            dtype: what it is to compute in; None: as it was trained.
            calibration: see `Source`.
        """
        model = self.model
        if dtype is not None and jnp.dtype(dtype) != model.dtype:
            config = dataclasses.replace(self.config.model, dtype=dtype)
            model = models.build(config, len(self.class_names))
        return Source(
            apply=functools.partial(apply, model, self.normalise),
            variables=jax.device_get(self.variables),
            image_shape=self.image_shape,
            class_names=self.class_names,
            calibration=calibration,
        )


def apply(model: Model, normalise: Normalise, variables: Any, images: jax.Array) -> jax.Array:
    """Logits float32 `[b, classes]` of images uint8 `[b, H, W, C]` or features `[b, D]`.

    Args:
        model: the network.
        normalise: what it sees of an example.
        variables: `TrainState.model`.
        images: as they are evaluated.
    """
    logits, _ = model.apply(
        variables["params"],
        variables["collections"],
        normalise(images),
        row=jnp.arange(images.shape[0], dtype=jnp.int32),
        key=None,
    )
    return logits


def load(
    checkpoints: AnyPath,
    which: str,
    config: Config,
    overrides: Collection[str],
    say: Callable[[str], None],
    *,
    every: bool = False,
) -> Restored:
    """The model of the checkpoint that a person names; looks again if a live run removed it.

    A pod's run is used on a laptop: unless the command line says how the model is to lie on the
    devices, the run's own way gives way to the default one where it does not fit.

    Args:
        checkpoints: the run's.
        which: `last`, `best`, a step's number or a checkpoint's path.
        config: the run's, with what the command line sets: `parallel` says how the model is to
            lie on the devices, `eval.weights` which weights are used.
        overrides: keys that the command line sets.
        say: told when the default is taken instead.
        every: whether the variables of all replicas are wanted, too.

    Raises:
        CheckpointError: it cannot be read, or is damaged.
        UsageError: there is none, its model cannot be built any more, or `config` does not fit.
    """
    parallel = config.parallel
    chosen = not {"parallel.mesh", "parallel.rules"}.isdisjoint(overrides)
    says = "train.export_replica" in overrides
    replica = config.train.export_replica if says else None
    while True:
        try:
            return checkpoint.read_located(
                functools.partial(_locate, checkpoints, which),
                functools.partial(
                    restore,
                    parallel=parallel,
                    weights=config.eval.weights,
                    replica=replica,
                    every=every,
                ),
            )
        except LayoutError as error:
            default = ParallelConfig()
            if chosen or (parallel.mesh, parallel.rules) == (default.mesh, default.rules):
                raise
            why = str(error).partition(";")[0]
            say(f"using {default.mesh}, {default.rules}: the run's {why}")
            parallel = dataclasses.replace(parallel, mesh=default.mesh, rules=default.rules)


def _locate(checkpoints: AnyPath, which: str) -> tuple[AnyPath, int]:
    """The folder and the step of `last`, `best`, a step's number or a checkpoint's path."""
    if checkpoint.is_step_name(which) or which in ("last", "best"):
        return checkpoints, checkpoint.resolve_step(checkpoints, which)
    path = files.place(which)
    if not path.is_dir() or not checkpoint.is_step_name(path.name):
        raise UsageError(
            f"--checkpoint={which} is neither last, best, a step nor the folder of a checkpoint "
            f"(as in {checkpoints / '100'})"
        )
    return path.parent, checkpoint.resolve_step(path.parent, path.name)


def restore(
    directory: AnyPath,
    step: int,
    parallel: ParallelConfig,
    weights: str | None = None,
    replica: int | None = None,
    *,
    every: bool = False,
) -> Restored:
    """The model of one checkpoint step, as its meta describes it; no optimizer is built.

    Args:
        directory: the run's checkpoints.
        step: one that is there.
        parallel: how it is to lie on the devices that are here.
        weights: as `eval.weights`.
        replica: which of several; None: the run's model.
        every: whether the variables of all are wanted, too.

    Raises:
        CheckpointError: the step cannot be read, or is damaged.
        UsageError: its model, such as a user's own module, cannot be built any more, or
            `parallel` does not fit the devices or the model.
    """
    found = stored.describe(directory, step)
    number = found.number(replica)
    mesh = build_mesh(parallel.mesh, all_devices())
    of_params = parameter_shardings(parallel.rules, found.abstract["params"], mesh)
    params = with_shardings(found.abstract["params"], of_params)
    abstract = on_mesh(found.abstract, mesh) | {"params": params}
    item = found.item(abstract)
    state.weights(item, weights)  # there are such
    restored = state.weights(checkpoint.restore_model(directory, step, item), weights)
    variables = restored
    if found.count > 1:
        pick = functools.partial(select, k=number)
        variables = jax.jit(pick, out_shardings=shardings(abstract))(restored)
    train = dataclasses.replace(found.config.train, export_replica=number)
    return Restored(
        model=found.model,
        normalise=found.normalise,
        variables=variables,
        every=restored if every and found.count > 1 else None,
        replica=number,
        variants=found.variants,
        weights=(weights or "ema") if "ema" in item else None,
        abstract=abstract,
        mesh=mesh,
        class_names=found.class_names,
        image_shape=found.image_shape,
        step=step,
        config=dataclasses.replace(found.config, train=train),
        directory=directory,
    )
