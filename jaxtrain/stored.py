"""What a checkpoint says of the model whose weights it holds."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from jaxtrain import checkpoint, models, state
from jaxtrain.config import Config, Variant, from_dict, variants
from jaxtrain.data import Statistics
from jaxtrain.errors import CheckpointError, UsageError
from jaxtrain.files import AnyPath
from jaxtrain.models import Model
from jaxtrain.normalise import Normalise, normalisation
from jaxtrain.replicas import stacked


@dataclasses.dataclass(frozen=True)
class StoredModel:
    """The model of a checkpoint step, without its weights.

    Attributes:
        config: what it was trained with.
        class_names: one name a class, in label order.
        image_shape: of one example, as it is evaluated.
        normalise: what it sees of an example.
        model: the network.
        abstract: shapes and dtypes of its parameters and collections.
        variants: the replicas, one or more, whose weights are there.
    """

    config: Config
    class_names: tuple[str, ...]
    image_shape: tuple[int, ...]
    normalise: Normalise
    model: Model
    abstract: dict[str, Any]
    variants: tuple[Variant, ...]

    def item(self, variables: Any) -> dict[str, Any]:
        """The checkpoint's item `model`, whose replicas have variables like these."""
        averages = self.variants[0].config.train.ema_decay is not None
        one = {**variables, "ema": variables} if averages else variables
        return one if self.count == 1 else stacked(one, self.count)

    def number(self, asked: int | None) -> int:
        """Which of several replicas is meant, counted from 0.

        Args:
            asked: the one; None: the run's model.

        Raises:
            UsageError: there is no such replica.
        """
        number, count = self.config.train.export_replica if asked is None else asked, self.count
        if number >= count:
            raise UsageError(
                f"train.export_replica={number} must be below {count}, the number of the run's "
                "replicas"
            )
        return number

    @property
    def count(self) -> int:
        """How many replicas there are."""
        return len(self.variants)


def describe(directory: AnyPath, step: int) -> StoredModel:
    """The model of a checkpoint step, as its meta describes it.

    Args:
        directory: the run's checkpoints.
        step: one that is there.

    Raises:
        CheckpointError: the step cannot be read, or is damaged.
        UsageError: its model, such as a user's own module, cannot be built any more.
    """
    meta = checkpoint.read_meta(directory, step)
    try:
        config = from_dict(meta["config"])
        class_names = tuple(meta["class_names"])
        image_shape = _shape(meta["image_shape"])
        known = functools.partial(_statistics, meta, image_shape)
        normalise = normalisation(config.data, image_shape, known)
    except (KeyError, TypeError, ValueError, UsageError) as error:
        raise CheckpointError(
            f"checkpoint {directory / str(step)}: its meta does not describe a model ({error})"
        ) from error
    model = models.build(config.model, len(class_names))
    abstract = state.abstract_model(model, image_shape, len(class_names))
    every = variants(config)
    return StoredModel(config, class_names, image_shape, normalise, model, abstract, every)


def _shape(sizes: Sequence[int]) -> tuple[int, ...]:
    if len(sizes) not in (1, 3):
        raise ValueError(f"an example of shape {sizes}")
    return tuple(sizes)


def _statistics(meta: Mapping[str, Any], image_shape: tuple[int, ...]) -> Statistics:
    """Those of the features that the model was trained on."""
    mean, std = (tuple(map(float, meta["statistics"][name])) for name in ("mean", "std"))
    if (len(mean),) != image_shape or (len(std),) != image_shape:
        raise ValueError(f"statistics of {len(mean)} and {len(std)} features")
    return Statistics(mean, std)
