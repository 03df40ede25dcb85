"""Flags to the request of each verb."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxtrain import files
from jaxtrain.config import (
    CheckRequest,
    EvalRequest,
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
_EVAL_KEYS = (
    *EXAMPLE_KEYS,
    "data.download",
    "data.eval_split",
    "data.cache",
    "data.threads",
    "data.ahead",
)


@dataclasses.dataclass(frozen=True)
class Given:
    """What the command line says to a verb.

    Attributes:
        flags: every flag of the verb by name; one that was not given is None.
        overrides: dotted key to the text of its value.
    """

    flags: Mapping[str, Any]
    overrides: Mapping[str, str]


def train_request(given: Given) -> TrainRequest:
    """The request of `jaxtrain train`.

    Raises:
        UsageError: no config, a bad one, or flags that contradict each other.
    """
    workdir = _folder(given.flags["workdir"])
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
        UsageError: no workdir, or a key that only a run's own config can set.
    """
    workdir = _folder(given.flags["workdir"])
    if workdir is None:
        raise UsageError("no --workdir; give --workdir=DIR, the folder of the run to evaluate")
    for name in given.overrides:
        if name not in _EVAL_KEYS and not name.startswith(("eval.", "parallel.")):
            raise UsageError(
                f"--config.{name} cannot be set for eval, which uses the run's own config; only "
                f"{', '.join(_EVAL_KEYS)}, eval.* and parallel.* can"
            )
    override_values({}, given.overrides)  # refuses a bad text before anything is loaded
    return EvalRequest(
        workdir=workdir,
        checkpoint=given.flags["checkpoint"] or "last",
        split=given.flags["split"],
        overrides=given.overrides,
        processes=_processes(given),
    )


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
    devices = _whole("devices", given.flags["devices"], least=1)
    topology = _topology(given.flags["topology"], devices)
    return CheckRequest(
        config=config,
        config_name=recipe.name,
        sources=sources,
        devices=devices,
        hosts=_hosts(_whole("hosts", given.flags["hosts"], least=1), devices, topology),
        topology=topology,
        batch=_whole("batch", given.flags["batch"], least=1),
        preview=_picture("preview", given.flags["preview"]),
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
    folder = workdir if files.is_bucket(workdir) else workdir.resolve()
    name = re.sub(r"-[0-9a-f]{8}$", "", folder.name)
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
    count = _whole("num_processes", place["num_processes"], least=1)
    index = _whole("process_id", place["process_id"], least=0)
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
    names = ", ".join(packaged_recipes())
    return f"no --config; give --config=FILE (a .py file, a config.json or one of: {names})"


def _folder(text: str | None) -> files.AnyPath | None:
    """The path of a folder; a bucket is asked now whether it is there, before anything slow."""
    if text is None:
        return None
    return files.place(text) if "://" in text else Path(text).expanduser()


def _picture(flag: str, text: str | None) -> Path | None:
    """The file of a picture, which need not be there."""
    if text is None:
        return None
    path = Path(text).expanduser()
    if path.suffix.lower() != ".png":
        raise UsageError(f"--{flag}={text} must be a file that ends in .png")
    if "://" in text:
        raise UsageError(f"--{flag}={text} must be a local file")
    if path.is_dir():
        raise UsageError(f"--{flag}={text} is a folder; give a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"--{flag}={text}: there is no folder {path.parent}; make it first")
    return path


def _whole(flag: str, text: str | None, least: int) -> int | None:
    if text is None:
        return None
    number = parse_number(text)
    if not isinstance(number, int) or number < least:
        raise UsageError(f"--{flag}={text} must be a whole number, {least} or more")
    return number
