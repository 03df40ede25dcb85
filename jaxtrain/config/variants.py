"""The replicas of a run: one model, several of different seeds, or several of a sweep."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Final

from jaxtrain.config.recipe import refuse_unread
from jaxtrain.config.schema import Config
from jaxtrain.config.text import apply_overrides, find_key, parse_number
from jaxtrain.errors import UsageError

SEED: Final = "seed"

# What changes only the learning rates of the steps.
RATE_KEYS: Final = (
    "optimizer.learning_rate",
    "schedule.warmup_steps",
    "schedule.warmup_epochs",
    "schedule.end_factor",
    "schedule.decay_rate",
    "schedule.decay_epochs",
)

# What leaves the data, the number of steps and the shapes of all variables as they are.
SWEPT_KEYS: Final = (
    *RATE_KEYS,
    "optimizer.weight_decay",
    "optimizer.clip_norm",
    "optimizer.momentum",
    "optimizer.b1",
    "optimizer.b2",
    "optimizer.eps",
    "optimizer.initial_accumulator",
    "optimizer.trust_coefficient",
    "train.label_smoothing",
    "train.binary_threshold",
    "train.ema_decay",
    "model.mlp.dropout",
    "model.resnet.dropout",
    "model.resnet.stochastic_depth",
)

# More of them are a mistake, such as a range written as its elements.
_MOST: Final = 1000

# In a row, in a sweep: one value may be too much for its model, which must not end the others.
_SKIPPED_IN_A_SWEEP: Final = 10**6


@dataclasses.dataclass(frozen=True)
class Variant:
    """What one replica of a run is.

    Attributes:
        config: what gives the same model when it is trained alone.
        key: in which key it differs from the others.
        value: what it has there.
    """

    config: Config
    key: str
    value: int | float

    def __str__(self) -> str:
        return f"{self.key}={self.value}"

    @property
    def difference(self) -> dict[str, int | float]:
        """The key and its value, as `{"seed": 1}`."""
        return {self.key: self.value}

    @property
    def is_of_sweep(self) -> bool:
        """Whether it differs from the others in a hyperparameter, not in its seed."""
        return self.key != SEED


def variants(config: Config) -> tuple[Variant, ...]:
    """The replicas of a run in order; one of a run of one model.

    With `train.replicas` K they have the seeds from `seed` on. With `train.replicate` they have the
    values that it lists and the same seed; of updates that are not finite a million in a row are
    skipped, unless `optimizer.skip_nonfinite` sets another limit.

    Raises:
        UsageError: `train.replicate` does not list values of a key that can be swept, or there are
            fewer replicas than other keys say.
    """
    train = config.train
    key, texts = SEED, [str(config.seed + k) for k in range(min(train.replicas, _MOST + 1))]
    if train.replicate is not None:
        key, texts = _parse(train.replicate)
        refuse_unread(config.model.name, {key: ""})
    if len(texts) > _MOST:
        raise UsageError(f"train.replicas={train.replicas:,} must be {_MOST:,} at most")
    if train.replicas not in (1, len(texts)):
        raise UsageError(
            f"train.replicas={train.replicas}, but train.replicate={train.replicate!r} lists "
            f"{len(texts)} values; leave train.replicas at 1"
        )
    if train.export_replica >= len(texts):
        raise UsageError(
            f"train.export_replica={train.export_replica} must be below {len(texts)}, the number "
            "of replicas"
        )
    alone = {"train.replicas": "1", "train.replicate": "None", "train.export_replica": "0"}
    if train.replicate is not None and not config.optimizer.skip_nonfinite:
        alone["optimizer.skip_nonfinite"] = str(_SKIPPED_IN_A_SWEEP)
    with explained_sweep(config):
        return tuple(
            Variant(apply_overrides(config, {**alone, key: text}), key, parse_number(text))
            for text in texts
        )


@contextlib.contextmanager
def explained_sweep(config: Config) -> Iterator[None]:
    """Says where a value comes from that something inside refuses, if it is one of a sweep."""
    try:
        yield
    except UsageError as error:
        replicate = config.train.replicate
        if replicate is None or replicate.partition("=")[0].strip() not in str(error):
            raise
        raise UsageError(f"train.replicate={replicate!r}: {error}") from error


def _parse(replicate: str) -> tuple[str, list[str]]:
    """The key of a sweep and the texts of its values.

    Raises:
        UsageError: it is not KEY=VALUE,VALUE,... with a key that can be swept.
    """
    name, separator, listed = (part.strip() for part in replicate.partition("="))
    if not separator:
        raise UsageError(
            f"train.replicate={replicate!r} must be KEY=VALUE,VALUE,..., as in "
            "optimizer.learning_rate=0.1,0.03,0.01"
        )
    if find_key(name)[0].name not in SWEPT_KEYS:
        raise UsageError(
            f"train.replicate: {name} cannot differ between replicas; it can be one of "
            f"{', '.join(SWEPT_KEYS)}"
        )
    texts = [text.strip() for text in listed.split(",")]
    bad = next((text for text in texts if isinstance(parse_number(text), str)), None)
    if bad is not None or len(texts) < 2:
        what = "give two values or more" if bad is None else f"{bad!r} is not a number; mend it"
        raise UsageError(f"train.replicate={replicate!r}: {what}")
    if len({float(text) for text in texts}) < len(texts):
        raise UsageError(f"train.replicate={replicate!r} lists a value twice; drop one")
    return name, texts
