"""`jaxtrain export`: a run's model as files for other runtimes, proven to be that model."""

import contextlib
import dataclasses
import functools
import math
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
from numpy.typing import NDArray

from jaxtrain import data, files, formats, predictor, runtimes, workdir
from jaxtrain.config import Config, ExportRequest, apply_overrides
from jaxtrain.config.choices import unknown
from jaxtrain.errors import ExportError, UsageError
from jaxtrain.formats import FORMATS, Tolerance, beside
from jaxtrain.formats.contract import PROBABILITIES
from jaxtrain.parallel.mesh import within_memory
from jaxtrain.predictor import Restored
from jaxtrain.report import Console, open_console, preparing
from jaxtrain.runtimes import Difference
from jaxtrain.tasks import Outputs

# Training examples that quantization measures activations on.
_CALIBRATION_EXAMPLES: Final = 512
# A batch of one, one that no accelerator likes, and a large one; no larger than the examples.
_BATCHES: Final = (1, 3, 256)
# Batches smaller than the largest see as many examples at most.
_SMALL_EXAMPLES: Final = 256


def export(request: ExportRequest) -> dict[str, Any]:
    """Exports a checkpoint's model, and compares each export's outputs with it.

    Returns:
        What was exported, and how near it is.

    Raises:
        UsageError: an unknown format, an extra that is missing, a place that is taken.
        ExportError: an export's outputs differ by more than the tolerance; it is not kept.
        JaxtrainError: see `jaxtrain.errors` for what each other kind means.
    """
    began = time.perf_counter()
    options = _options(request)
    for name in request.formats:
        formats.exporter(name)
    stored = workdir.read_run(request.workdir)
    config = apply_overrides(stored.config, request.overrides)
    with contextlib.closing(open_console(sys.stderr, time.perf_counter)) as console:
        model = predictor.load(
            stored.checkpoints_dir,
            request.checkpoint,
            config,
            request.overrides,
            console.message,
        )
        targets = _targets(request, stored, model)
        with preparing() as progress:
            split = predictor.open_split(model, config.data, None, progress)
        with within_memory():
            work = _Work(model, split, config, options, request, console)
            exports = [work.export(name, path) for name, path in targets.items()]
    return {
        "status": "exported",
        "step": model.step,
        "exports": exports,
        "seconds": round(time.perf_counter() - began, 3),
        "workdir": str(stored.path),
    }


def _options(request: ExportRequest) -> formats.Options:
    """The options that are given.

    Raises:
        UsageError: an unknown format or choice, or one that no format reads.
    """
    for name in request.formats:
        if name not in FORMATS:
            raise unknown("--format", name, FORMATS)
    given: dict[str, Any] = {"platforms": request.platforms, "quantize": request.quantize}
    given = {name: value for name, value in given.items() if value is not None}
    for option, value in given.items():
        readers = [name for name, row in FORMATS.items() if option in row.reads]
        if not set(readers) & set(request.formats):
            raise UsageError(
                f"--{option} is set, but {' and '.join(request.formats)} does not read it; "
                f"{' and '.join(readers)} does"
            )
        for choice in (value,) if isinstance(value, str) else value:
            if (option, choice) == ("platforms", "gpu"):
                raise UsageError("--platforms=gpu does not say which kind: cuda or rocm")
            if choice not in formats.CHOICES[option]:
                raise unknown(f"--{option}", choice, formats.CHOICES[option])
    return formats.Options(**given)


def _targets(request: ExportRequest, stored: workdir.StoredRun, model: Restored) -> dict[str, Path]:
    """Where each format goes.

    Raises:
        UsageError: it is taken, or is to lie in a bucket.
    """
    run, several = stored.path, len(request.formats) > 1
    which = [str(model.step)]
    if model.replica != stored.config.train.export_replica:
        which.append(f"replica{model.replica}")
    if request.output is None and not isinstance(run, Path):
        raise UsageError(f"{run} cannot hold an export; give --output=PATH, a local folder")
    targets = {}
    for name in request.formats:
        if request.output is not None:
            path = request.output / name if several else request.output
        else:
            kind = [name, request.quantize] if "quantize" in FORMATS[name].reads else [name]
            path = Path(run) / "export" / "-".join([*filter(None, kind), *which])
        path = Path(os.path.normpath(path))
        if path.name in ("", ".."):
            path = Path(os.path.abspath(path))
        _refuse_taken(path, request.overwrite)
        targets[name] = path
    return targets


def _refuse_taken(path: Path, overwrite: bool) -> None:
    if path.absolute().parent.name == workdir.CHECKPOINTS:
        raise UsageError(f"{path} lies among checkpoints; give another --output")
    above = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    if not above.is_dir():
        raise UsageError(f"{path} cannot be made: {above} is no folder; give another --output")
    with files.writing(path):
        files.bring_back(path)
    if not path.exists() and not path.is_symlink():
        return
    if not overwrite:
        raise UsageError(f"{path} is there already; give --overwrite, or another --output")
    if not (path / beside.SIGNATURE).is_file():
        raise UsageError(f"{path} is no export, and is left as it is; give another --output")


def _which(model: Restored) -> str:
    """Which weights are exported, in words, where a run has two sets of them."""
    return f" ({model.weights} weights)" if model.weights else ""


@dataclasses.dataclass(frozen=True)
class _Work:
    """What all formats of one command share."""

    model: Restored
    split: data.Split
    config: Config
    options: formats.Options
    request: ExportRequest
    console: Console

    def export(self, name: str, path: Path) -> dict[str, Any]:
        """One format: written beside its place, compared, and only then brought there."""
        exporter = formats.exporter(name)
        source = self.model.source(
            FORMATS[name].dtype, functools.partial(_calibration, self.model, self.config)
        )
        self.console.message(f"exporting step {self.model.step}{_which(self.model)} as {name}")
        with files.atomic_folder(path, replace=self.request.overwrite) as folder:
            with files.writing(path):
                said = exporter.save(source, folder, self.options)
            beside.write(
                folder,
                name,
                source,
                step=self.model.step,
                config=self.model.config,
                said=said,
                snippet=exporter.SNIPPET,
                needs=FORMATS[name].needs,
            )
            actual = exporter.load(folder, PROBABILITIES)
            differences = self._differences(name, actual)
            largest = max((each.largest for each in differences), key=_nan_last)
            agreement = differences[-1].same_class / differences[-1].examples
            self.console.message(_summary(name, differences, largest))
            tolerance = self._tolerance(name)
            _judge(name, largest, agreement, tolerance)
            verification = {
                "split": self.split.name,
                "fingerprint": self.split.fingerprint,
                "largest_difference": largest,
                "agreement": agreement,
                "tolerance": dataclasses.asdict(tolerance),
                "batches": [dataclasses.asdict(each) for each in differences],
            }
            files.atomic_write_json(folder / beside.VERIFICATION, verification)
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        self.console.message(f"exported: {path}  {_bytes_text(size)}")
        return {
            "format": name,
            "path": str(path),
            "bytes": size,
            "largest_difference": largest,
            "agreement": agreement,
        }

    def _tolerance(self, name: str) -> Tolerance:
        """How far this format's outputs may be from the checkpoint's."""
        if self.request.tolerance is not None:
            return Tolerance(self.request.tolerance, 0.0)
        quantize = self.options.quantize if "quantize" in FORMATS[name].reads else None
        return formats.tolerance(quantize, self.model.config.model.dtype)

    def _differences(self, name: str, actual: Outputs) -> list[Difference]:
        """How far an export is from the checkpoint, at each size of its batches."""
        softmax = jax.jit(jax.nn.softmax)

        def expected(images: NDArray[Any]) -> NDArray[np.float32]:
            # An accelerator would round the products of float32 numbers, which others do not.
            with jax.default_matmul_precision("highest"):
                logits = self.model.logits(images)
            probabilities: NDArray[np.float32] = jax.device_get(softmax(logits))
            return probabilities

        asked = self.request.verify
        count = self.split.size if asked is None else min(asked, self.split.size)
        found = []
        self.console.pause(f"verify {name}")
        batches = sorted({min(batch, count) for batch in _BATCHES})
        for batch in batches:
            examples = count if batch == batches[-1] else min(count, _SMALL_EXAMPLES)
            difference = runtimes.compare(
                expected,
                actual,
                self.split,
                _spread(self.split.size, examples),
                batch=batch,
                tick=functools.partial(self.console.batches, f"verify {name}"),
            )
            found.append(difference)
        self.console.unpause()
        return found


def _summary(name: str, differences: list[Difference], largest: float) -> str:
    sizes = ", ".join(str(each.batch) for each in differences)
    same, examples = differences[-1].same_class, differences[-1].examples
    return (
        f"{name}: same class for {same:,} of {examples:,} examples, probabilities differ by "
        f"{largest:.1e} at most (batches of {sizes})"
    )


def _bytes_text(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.1f} kB"


def _judge(name: str, largest: float, agreement: float, tolerance: Tolerance) -> None:
    """Refuses an export that is not the model.

    Raises:
        ExportError: so it is.
    """
    end = "nothing is exported; accept it with --tolerance, or choose another format"
    if not largest <= tolerance.difference:  # a NaN is not
        raise ExportError(
            f"{name}: a probability differs by {largest:.2g} from the checkpoint's, more than "
            f"{tolerance.difference:g}; {end}"
        )
    if agreement < tolerance.agreement:
        raise ExportError(
            f"{name}: only {agreement:.1%} of the examples get the checkpoint's class, fewer than "
            f"{tolerance.agreement:.0%}; {end}"
        )


def _nan_last(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _calibration(model: Restored, config: Config) -> NDArray[Any]:
    """Training examples, spread over the split, as they are evaluated."""
    split = predictor.open_split(model, config.data, config.data.train_split)
    return split.read(_spread(split.size, min(_CALIBRATION_EXAMPLES, split.size)))


def _spread(size: int, count: int) -> NDArray[np.int64]:
    """`count` of `size` indices, evenly: splits may be in the order of their classes."""
    return np.arange(count, dtype=np.int64) * size // count
