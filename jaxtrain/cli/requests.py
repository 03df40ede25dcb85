"""Flags to the request of each verb."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxtrain import files
from jaxtrain.cli.values import file_for, folder, names, picture, whole
from jaxtrain.config import (
    CheckRequest,
    EvalRequest,
    ExportRequest,
    PredictRequest,
    Processes,
    Recipe,
    TrainRequest,
    load_recipe,
    packaged_recipes,
    parse_number,
    resolve,
)
from jaxtrain.config.request import EXAMPLE_KEYS, split_address
from jaxtrain.config.store import read_json
from jaxtrain.config.text import override_values
from jaxtrain.config.values import check_values
from jaxtrain.errors import UsageError

# Where the examples come from; what is made of them is the run's own.
_PLACE_KEYS = (*EXAMPLE_KEYS, "data.download", "data.eval_split", "data.on_bad_file")
_READING_KEYS = ("data.cache", "data.cache_path", "data.threads", "data.ahead")
# Which weights are used, and how they lie on the devices.
_WEIGHT_KEYS = ("eval.weights", "train.export_replica", "parallel.")
# Examples that an export is verified with.
_VERIFY = 256


@dataclasses.dataclass(frozen=True)
class Given:
    """What the command line says to a verb.

    Attributes:
        flags: every flag of the verb by name; one that was not given is None.
        overrides: dotted key to the text of its value.
        words: what is no flag, after the verb.
        width: cells of a line of stdout; None: it is no terminal.
    """

    flags: Mapping[str, Any]
    overrides: Mapping[str, str]
    words: tuple[str, ...] = ()
    width: int | None = None


def train_request(given: Given) -> TrainRequest:
    """The request of `jaxtrain train`.

    Raises:
        UsageError: no config, a bad one, or flags that contradict each other.
    """
    workdir = folder(given.flags["workdir"])
    if given.flags["fresh"] and given.flags["extend"]:
        raise UsageError("--fresh starts another run, --extend goes on with one: give one of them")
    if given.flags["extend"] and workdir is None:
        raise UsageError("--extend needs --workdir=DIR, the folder of the run to make longer")
    if given.flags["config"] is not None:
        recipe = load_recipe(given.flags["config"])
    elif workdir is not None:
        recipe = _stored_recipe(workdir)
    else:
        raise UsageError(f"{_no_config()}; or --workdir=DIR to go on with the run in it")
    config, sources = resolve(recipe, given.overrides)
    return TrainRequest(
        config=config,
        config_name=recipe.name,
        workdir=workdir,
        fresh=bool(given.flags["fresh"]),
        extend=bool(given.flags["extend"]),
        sources=sources,
        processes=_processes(given),
    )


def eval_request(given: Given) -> EvalRequest:
    """The request of `jaxtrain eval`.

    Raises:
        UsageError: no workdir, a key that only a run's own config can set, flags that contradict
            each other, or no place for the predictions.
    """
    exported = _exported(given)
    keys: tuple[str, ...] = (*_PLACE_KEYS, "eval.batch_size", "eval.flip_average")
    if exported is None:
        keys = (*_PLACE_KEYS, *_READING_KEYS, "eval.", *_WEIGHT_KEYS[1:])
    predictions = file_for("predictions", given.flags["predictions"])
    if given.flags["top_k"] is not None and predictions is None:
        raise UsageError(f"--top_k={given.flags['top_k']} needs --predictions=FILE, for its rows")
    hardest = whole("hardest", given.flags["hardest"], least=1)
    return EvalRequest(
        workdir=_workdir(given, "evaluate"),
        checkpoint=given.flags["checkpoint"] or "last",
        split=given.flags["split"],
        exported=exported,
        predictions=predictions,
        top_k=whole("top_k", given.flags["top_k"], least=1) or 1,
        hardest=hardest,
        by=_by(given.flags["by"], hardest, exported),
        overrides=_overrides(given, "eval", keys),
        processes=_processes(given),
    )


def _by(text: str | None, hardest: int | None, exported: Path | None) -> str:
    """What says how hard an example is."""
    if text is None:
        return "loss"
    if text not in ("loss", "gradient"):
        raise UsageError(f"--by={text} must be one of loss, gradient")
    if hardest is None:
        raise UsageError(f"--by={text} needs --hardest=N, how many examples to list")
    if text == "gradient" and exported is not None:
        raise UsageError(
            f"--by=gradient needs the gradients of a checkpoint, and --exported={exported} has "
            "none: drop one"
        )
    return text


def predict_request(given: Given) -> PredictRequest:
    """The request of `jaxtrain predict`.

    Raises:
        UsageError: no model or two, nothing to classify, or no place for the rows.
    """
    exported = _exported(given)
    workdir = folder(given.flags["workdir"])
    if (workdir is None) == (exported is None):
        raise UsageError(
            "give one model: --workdir=DIR, the folder of a run, or --exported=PATH, that of an "
            "export"
        )
    if not given.words:
        raise UsageError("nothing to classify; name images, folders, arrays, or - for a list")
    keys: tuple[str, ...] = ("eval.batch_size",)
    if exported is None:
        keys = (*keys, *_WEIGHT_KEYS)
    return PredictRequest(
        paths=given.words,
        workdir=workdir,
        exported=exported,
        checkpoint=given.flags["checkpoint"] or "last",
        top_k=whole("top_k", given.flags["top_k"], least=1) or 1,
        output=file_for("output", given.flags["output"]),
        width=given.width,
        overrides=_overrides(given, "predict", keys),
    )


def export_request(given: Given) -> ExportRequest:
    """The request of `jaxtrain export`; the names of formats are checked by who knows them.

    Raises:
        UsageError: no workdir, no format, or a value that its flag refuses.
    """
    formats = names("format", given.flags["format"])
    if formats is None:
        raise UsageError("no --format; give one or several, as in --format=savedmodel,onnx")
    verify = given.flags["verify"]
    tolerance = given.flags["tolerance"]
    if tolerance is not None:
        number = parse_number(tolerance)
        if isinstance(number, str) or not 0 <= number <= 1:
            raise UsageError(f"--tolerance={tolerance} must be a difference in 0..1, as in 0.05")
        tolerance = float(number)
    output = given.flags["output"]
    if output is not None and "://" in output:
        raise UsageError(f"--output={output} must be a local folder; copy it from there")
    return ExportRequest(
        workdir=_workdir(given, "export"),
        formats=formats,
        checkpoint=given.flags["checkpoint"] or "last",
        output=None if output is None else Path(output).expanduser(),
        platforms=names("platforms", given.flags["platforms"]),
        quantize=given.flags["quantize"],
        verify=_verify(verify),
        tolerance=tolerance,
        overwrite=bool(given.flags["overwrite"]),
        overrides=_overrides(given, "export", (*_PLACE_KEYS, *_WEIGHT_KEYS)),
    )


def _verify(text: str | None) -> int | None:
    """Examples to verify with; None: all."""
    if text is not None and text.casefold() == "all":
        return None
    try:
        return whole("verify", text, least=1) or _VERIFY
    except UsageError as error:
        raise UsageError(f"{error}, or all") from error


def _workdir(given: Given, purpose: str) -> files.AnyPath:
    workdir = folder(given.flags["workdir"])
    if workdir is None:
        raise UsageError(f"no --workdir; give --workdir=DIR, the folder of the run to {purpose}")
    return workdir


def _exported(given: Given) -> Path | None:
    """The folder of an exported model, which has one checkpoint's weights."""
    text = given.flags["exported"]
    if text is None:
        return None
    if given.flags["checkpoint"] is not None:
        raise UsageError(
            f"--exported={text} and --checkpoint={given.flags['checkpoint']} name two models: "
            "drop one"
        )
    if "://" in text:
        raise UsageError(f"--exported={text} must be a local folder; copy it from there")
    return Path(text).expanduser()


def _overrides(given: Given, verb: str, allowed: tuple[str, ...]) -> Mapping[str, str]:
    """`--config.KEY` of a verb that uses a run's own config, of which it can set some keys.

    Args:
        given: the command line.
        verb: the verb.
        allowed: those keys; one that ends in a dot stands for all below it.
    """
    for name in given.overrides:
        if not any(name.startswith(key) if key[-1] == "." else name == key for key in allowed):
            keys = [f"{key}*" if key[-1] == "." else key for key in allowed]
            some = " and ".join([", ".join(keys[:-1]), keys[-1]] if keys[1:] else keys)
            raise UsageError(
                f"--config.{name} cannot be set for {verb}, which uses the run's own config; only "
                f"{some} can"
            )
    override_values({}, given.overrides)  # refuses a bad text before anything is loaded
    return given.overrides


def check_request(given: Given) -> CheckRequest:
    """The request of `jaxtrain check`.

    Raises:
        UsageError: no config, a bad one, a bad number, flags that contradict each other, or no
            place for the picture.
    """
    if given.flags["config"] is None:
        raise UsageError(_no_config())
    recipe = load_recipe(given.flags["config"])
    config, sources = resolve(recipe, given.overrides)
    devices = whole("devices", given.flags["devices"], least=1)
    topology = _topology(given.flags["topology"], devices)
    return CheckRequest(
        config=config,
        config_name=recipe.name,
        sources=sources,
        devices=devices,
        hosts=_hosts(whole("hosts", given.flags["hosts"], least=1), devices, topology),
        topology=topology,
        batch=whole("batch", given.flags["batch"], least=1),
        preview=picture("preview", given.flags["preview"]),
        scan=bool(given.flags["scan"]),
        print_config=bool(given.flags["print_config"]),
        json=bool(given.flags["json"]),
    )


def _stored_recipe(workdir: files.AnyPath) -> Recipe:
    """The config of the run in `workdir`, under the name that the run's folder has."""
    path = workdir / "config.json"
    if not path.exists():
        raise UsageError(f"--workdir={workdir} holds no config.json to go on with; give --config")
    values = read_json(path)
    try:
        flat = check_values(values)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    place = workdir if files.is_bucket(workdir) else workdir.resolve()
    name = re.sub(r"-[0-9a-f]{8}$", "", place.name)
    return Recipe(name=name, label=str(path), values=flat)


def _processes(given: Given) -> Processes:
    """How the other processes are found; all of the three numbers are given, or none."""
    distributed = given.flags["distributed"] or "auto"
    if distributed not in ("auto", "on", "off"):
        raise UsageError(f"--distributed={distributed} must be one of auto, on, off")
    place = {name: given.flags[name] for name in ("coordinator", "num_processes", "process_id")}
    said = [name for name, value in place.items() if value is not None]
    if said and distributed == "off":
        raise UsageError(f"--distributed=off and --{said[0]} contradict each other: drop one")
    if 0 < len(said) < len(place):
        missing = " and ".join(f"--{name}" for name in place if name not in said)
        raise UsageError(f"--{said[0]} needs {missing} too; or give none, to find a cluster")
    count = whole("num_processes", place["num_processes"], least=1)
    index = whole("process_id", place["process_id"], least=0)
    if count is not None and index is not None and index >= count:
        raise UsageError(
            f"--process_id={index} must be below --num_processes={count}: the first process is 0"
        )
    if place["coordinator"] is not None:
        try:
            split_address(place["coordinator"])
        except ValueError as error:
            raise UsageError(f"--coordinator={place['coordinator']} {error}") from error
    return Processes(
        distributed=distributed,
        coordinator=place["coordinator"],
        num_processes=count,
        process_id=index,
    )


def _hosts(hosts: int | None, devices: int | None, topology: str | None) -> int | None:
    """How many hosts hold these devices, if it can be."""
    if hosts is None:
        return None
    if topology is not None:
        raise UsageError(f"--topology={topology} says how many hosts there are; drop --hosts")
    if devices is None:
        raise UsageError(f"--hosts={hosts} needs --devices=N, the number of devices of them all")
    if devices % hosts:
        raise UsageError(
            f"--devices={devices} does not divide over --hosts={hosts}: every host has as many"
        )
    return hosts


def _topology(text: str | None, devices: int | None) -> str | None:
    """The name of a TPU slice, which says itself how many devices there are."""
    if text is not None and devices is not None:
        raise UsageError(f"--topology={text} says how many devices there are; drop --devices")
    return text


def _no_config() -> str:
    recipes = ", ".join(packaged_recipes())
    return f"no --config; give --config=FILE (a .py file, a config.json or one of: {recipes})"
