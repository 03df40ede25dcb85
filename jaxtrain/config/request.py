"""What the command line asks of a verb: plain, frozen values, resolved and checked."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from jaxtrain.config.schema import Config

# Keys that say which examples there are, beside the splits.
EXAMPLE_KEYS = (
    "data.source",
    "data.path",
    "data.name",
    "data.version",
    "data.image_key",
    "data.label_key",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """`jaxtrain train`.

    Attributes:
        config: the resolved config.
        config_name: stem of the config's file; names the default workdir.
        workdir: where the run lives; None: the default for this config.
        fresh: start another run beside the default one.
        extend: allow more steps than the run was started with.
        sources: dotted key to where its value came from: "default", the config's file, or
            "command line".
    """

    config: Config
    config_name: str
    workdir: Path | None
    fresh: bool
    extend: bool
    sources: Mapping[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalRequest:
    """`jaxtrain eval`.

    Attributes:
        workdir: the run to evaluate.
        checkpoint: `last`, `best`, a step's number or a checkpoint's path.
        split: name of the split; None: the one that was evaluated while training.
        overrides: dotted key to the text of its value, for `apply_overrides` on the run's config.
    """

    workdir: Path
    checkpoint: str = "last"
    split: str | None = None
    overrides: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def has_other_data(self) -> bool:
        """Whether it may mean other examples than those of the run."""
        return any(name in self.overrides for name in EXAMPLE_KEYS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckRequest:
    """`jaxtrain check`.

    Attributes:
        config: the resolved config.
        config_name: stem of the config's file.
        sources: as in `TrainRequest`.
        devices: number of devices to check for; None: those that are here.
        batch: step whose batch to show; None: none.
        preview: file for a picture of that batch, or of the first; None: none.
        print_config: show every key with its value, its source and its meaning.
        json: report as one JSON object instead of text.
    """

    config: Config
    config_name: str
    sources: Mapping[str, str]
    devices: int | None
    batch: int | None
    preview: Path | None
    print_config: bool
    json: bool
