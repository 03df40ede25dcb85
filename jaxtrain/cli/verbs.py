"""The table of verbs, with the flags of each."""

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxtrain.cli.requests import Given, check_request, eval_request, train_request


@dataclasses.dataclass(frozen=True)
class Flag:
    """A flag of a verb.

    Attributes:
        name: the flag without its dashes.
        value: what stands for its value in help; None: it is true or false.
        doc: its meaning.
    """

    name: str
    value: str | None
    doc: str


@dataclasses.dataclass(frozen=True)
class Verb:
    """A verb.

    Attributes:
        summary: what it does.
        examples: command lines to start from, the plainest first.
        flags: its flags; no other is accepted.
        keys: the meaning of `--config.KEY`, which keys it can set.
        request: makes the request of what the command line says.
        run: `module:function`, imported when the verb runs. The function takes the request and
            returns its result, a dict, which is printed as one line of JSON; or a text to print
            and the exit status; or None, as processes beside the first do, which print nothing.
    """

    summary: str
    examples: tuple[str, ...]
    flags: tuple[Flag, ...]
    keys: str
    request: Callable[[Given], Any]
    run: str


_CONFIG = Flag("config", "FILE", "a .py file, a config.json or the name of a packaged config")
_DEBUG = Flag("debug", None, "show the traceback of an error and what libraries log")
_PROCESSES = (
    Flag(
        "distributed",
        "auto|on|off",
        "auto (unless said) finds a cluster, on insists, off is alone",
    ),
    Flag("coordinator", "HOST:PORT", "where process 0 listens, if no cluster says so"),
    Flag("num_processes", "N", "how many processes there are"),
    Flag("process_id", "I", "which of them this one is, from 0"),
)
_ANY_KEY = "set any key, as in --config.optimizer.learning_rate=3e-4; None unsets"

VERBS = {
    "train": Verb(
        summary="train a model; the same command goes on with a run that was stopped",
        examples=(
            "jaxtrain train --config=mnist_mlp",
            "jaxtrain train --config=mnist_mlp --config.train.epochs=3 --workdir=runs/short",
            "jaxtrain train --workdir=runs/short",
        ),
        flags=(
            _CONFIG,
            Flag("workdir", "DIR", "folder of the run; without --config, go on with the run in it"),
            Flag("fresh", None, "start another run instead of going on with the one that is there"),
            Flag("extend", None, "go on for more steps than the run was started with"),
            *_PROCESSES,
            _DEBUG,
        ),
        keys=_ANY_KEY,
        request=train_request,
        run="jaxtrain.train:train",
    ),
    "eval": Verb(
        summary="evaluate a run's checkpoint on every example of a split",
        examples=(
            "jaxtrain eval --workdir=runs/short",
            "jaxtrain eval --workdir=runs/short --checkpoint=best --split=test",
        ),
        flags=(
            Flag("workdir", "DIR", "folder of the run (needed)"),
            Flag("checkpoint", "last|best|STEP|PATH", "which checkpoint; last unless said"),
            Flag(
                "split", "NAME", "which split; the one that training was evaluated on unless said"
            ),
            *_PROCESSES,
            _DEBUG,
        ),
        keys="set data.path and where else data comes from, eval.*, parallel.*",
        request=eval_request,
        run="jaxtrain.evaluate:evaluate",
    ),
    "check": Verb(
        summary="find what would fail before training, and show what a run would do",
        examples=(
            "jaxtrain check --config=mnist_mlp",
            "jaxtrain check --config=mnist_mlp --devices=8 --batch=1",
            "jaxtrain check --config=mnist_mlp --topology=v5e:2x2",
            "jaxtrain check --config=mnist_mlp --config.data.augment='pad_crop(2)' "
            "--preview=examples.png",
        ),
        flags=(
            _CONFIG,
            Flag("devices", "N", "check for N devices instead of those of this machine"),
            Flag("hosts", "M", "how many hosts hold those N devices; 1 unless said"),
            Flag(
                "topology",
                "v5e:4x8",
                "compile the step for that TPU slice, here, and show what it needs there",
            ),
            Flag("batch", "STEP", "show the examples of that step's batch"),
            Flag(
                "preview",
                "FILE.png",
                "draw examples of that batch (else the first) before and after augmentation",
            ),
            Flag(
                "print_config", None, "list every key instead: value, where it came from, meaning"
            ),
            Flag("json", None, "report as JSON"),
            _DEBUG,
        ),
        keys=_ANY_KEY,
        request=check_request,
        run="jaxtrain.check:check",
    ),
}
