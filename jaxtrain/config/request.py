"""What the command line asks of a verb: plain, frozen values, resolved and checked."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path, PurePath

from jaxtrain.config.schema import Config

# Keys that say which examples there are, beside the splits.
EXAMPLE_KEYS = (
    "data.source",
    "data.path",
    "data.name",
    "data.version",
    "data.image_key",
    "data.label_key",
    "data.path_column",
    "data.label_column",
    "data.split_column",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Processes:
    """How this process finds the others of a run.

    Attributes:
        distributed: `auto` looks for others and is content with none, `on` must find out, `off`
            does not look.
        coordinator: HOST:PORT of process 0; None, as are the next two: to be found out.
        num_processes: how many there are.
        process_id: which of them this is, from 0.
    """

    distributed: str = "auto"
    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None


def split_address(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT; an IPv6 address stands in brackets.

    Raises:
        ValueError: it is something else; says what is needed.
    """
    match = re.fullmatch(r"(?:\[([^\[\]]+)\]|([^:\[\]/\s]+)):(\d{1,5})", text)
    if match is None or not 0 < int(match[3]) < 2**16:
        raise ValueError("must be HOST:PORT with a port between 1 and 65535, as in 10.0.0.2:8476")
    return match[1] or match[2], int(match[3])


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """`jaxtrain train`.

    Attributes:
        config: the resolved config.
        config_name: stem of the config's file; names the default workdir.
        workdir: where the run lives, a local path or one in a bucket; None: the default for this
            config.
        fresh: start another run beside the default one.
        extend: allow more steps than the run was started with.
        sources: dotted key to where its value came from: "default", the config's file, or
            "command line".
        processes: how the other processes are found.
    """

    config: Config
    config_name: str
    workdir: PurePath | None
    fresh: bool
    extend: bool
    sources: Mapping[str, str]
    processes: Processes = Processes()


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalRequest:
    """`jaxtrain eval`.

    Attributes:
        workdir: the run to evaluate.
        checkpoint: `last`, `best`, a step's number or a checkpoint's path.
        split: name of the split; None: the one that was evaluated while training.
        exported: folder of an exported model to score instead; None: the checkpoint.
        predictions: file for a row an example; None: none.
        top_k: how many classes a row names.
        hardest: how many of the hardest examples to list; None: none.
        by: what says how hard one is, `loss` or `gradient`.
        overrides: dotted key to the text of its value, for `apply_overrides` on the run's config.
        processes: how the other processes are found.
    """

    workdir: PurePath
    checkpoint: str = "last"
    split: str | None = None
    exported: Path | None = None
    predictions: Path | None = None
    top_k: int = 1
    hardest: int | None = None
    by: str = "loss"
    overrides: Mapping[str, str] = dataclasses.field(default_factory=dict)
    processes: Processes = Processes()

    @property
    def has_other_data(self) -> bool:
        """Whether it may mean other examples than those of the run."""
        return any(name in self.overrides for name in EXAMPLE_KEYS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictRequest:
    """`jaxtrain predict`.

    Attributes:
        paths: what to classify: see `data.list_inputs`; one or more.
        workdir: the run whose model to use; None: `exported` is set.
        exported: folder of an exported model to use; None: `workdir` is set.
        checkpoint: as in `EvalRequest`.
        top_k: how many classes a row names.
        output: file for the rows; None: stdout.
        width: cells of a line of stdout; None: it is no terminal.
        overrides: as in `EvalRequest`.
    """

    paths: tuple[str, ...]
    workdir: PurePath | None = None
    exported: Path | None = None
    checkpoint: str = "last"
    top_k: int = 1
    output: Path | None = None
    width: int | None = None
    overrides: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """`jaxtrain export`.

    Attributes:
        workdir: the run whose model to export.
        formats: names of formats, one or more.
        checkpoint: as in `EvalRequest`.
        output: the export's folder, or that of all exports if there are several formats; None: in
            the run's folder.
        platforms: what `stablehlo` is lowered for; None: not said.
        quantize: how `tflite` is quantized; None: it is not.
        verify: examples to verify with; None: all of the split.
        tolerance: largest difference of a probability that is accepted; None: the format's own.
        overwrite: whether an export that is there is replaced.
        overrides: as in `EvalRequest`.
    """

    workdir: PurePath
    formats: tuple[str, ...]
    checkpoint: str = "last"
    output: Path | None = None
    platforms: tuple[str, ...] | None = None
    quantize: str | None = None
    verify: int | None
    tolerance: float | None = None
    overwrite: bool = False
    overrides: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckRequest:
    """`jaxtrain check`.

    Attributes:
        config: the resolved config.
        config_name: stem of the config's file.
        sources: as in `TrainRequest`.
        devices: number of devices to check for; None: those that are here.
        hosts: number of hosts that hold those devices, as many each; None: one.
        topology: TPU slice to check for instead, and to compile the step for; None: none.
        batch: step whose batch to show; None: none.
        preview: file for a picture of that batch, or of the first; None: none.
        scan: read every example, to find the bad ones and those of more than one split.
        print_config: show every key with its value, its source and its meaning.
        json: report as one JSON object instead of text.
    """

    config: Config
    config_name: str
    sources: Mapping[str, str]
    devices: int | None
    hosts: int | None
    topology: str | None
    batch: int | None
    preview: Path | None
    scan: bool
    print_config: bool
    json: bool
