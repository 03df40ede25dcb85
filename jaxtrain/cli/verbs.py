"""The table of verbs, with the flags of each."""

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxtrain.cli.requests import (
    Given,
    check_request,
    eval_request,
    export_request,
    predict_request,
    train_request,
)


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
            and the exit status; or texts to print as they come; or None, as processes beside the
            first do, which print nothing.
        words: what stands in help for the words that it takes beside flags, and their meaning;
            None: it takes none.
    """

    summary: str
    examples: tuple[str, ...]
    flags: tuple[Flag, ...]
    keys: str
    request: Callable[[Given], Any]
    run: str
    words: tuple[str, str] | None = None


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
_CHECKPOINT = Flag("checkpoint", "last|best|STEP|PATH", "which checkpoint; last unless said")
_TOP_K = Flag("top_k", "N", "classes that a row names, the most probable first; 1 unless said")
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
            "jaxtrain eval --workdir=runs/short --checkpoint=best --split=test --hardest=50",
            "jaxtrain eval --workdir=runs/short --predictions=test.csv --top_k=3",
            "jaxtrain eval --workdir=runs/short --exported=runs/short/export/onnx-1407",
        ),
        flags=(
            Flag("workdir", "DIR", "folder of the run (needed)"),
            _CHECKPOINT,
            Flag(
                "split", "NAME", "which split; the one that training was evaluated on unless said"
            ),
            Flag("exported", "PATH", "score that exported model instead, by its own runtime"),
            Flag("predictions", "FILE", "write a row for every example, as .csv or .jsonl"),
            _TOP_K,
            Flag("hardest", "N", "list and show the N hardest examples, in the run's eval folder"),
            Flag("by", "loss|gradient", "hard by its loss (unless said) or by its gradient's norm"),
            *_PROCESSES,
            _DEBUG,
        ),
        keys="set data.path ..., eval.*, train.export_replica, parallel.*",
        request=eval_request,
        run="jaxtrain.evaluate:evaluate",
    ),
    "predict": Verb(
        summary="classify images: files, folders, arrays",
        examples=(
            "jaxtrain predict --workdir=runs/short photo.png",
            "jaxtrain predict --workdir=runs/short --top_k=3 --output=found.csv photos/ *.png",
            "jaxtrain predict --exported=runs/short/export/onnx-1407 - <list.txt",
        ),
        words=(
            "PATH...",
            "images, folders of them, .npy or IDX arrays; - reads a list of paths from stdin",
        ),
        flags=(
            Flag("workdir", "DIR", "folder of the run whose model to use (it or --exported)"),
            Flag("exported", "PATH", "folder of an exported model to use, by its own runtime"),
            _CHECKPOINT,
            _TOP_K,
            Flag("output", "FILE", "where the rows go, a .csv or .jsonl; stdout unless said"),
            _DEBUG,
        ),
        keys="set eval.batch_size, eval.weights, train.export_replica, parallel.*",
        request=predict_request,
        run="jaxtrain.predict:predict",
    ),
    "export": Verb(
        summary="write a run's model for other runtimes, and prove that it is the model",
        examples=(
            "jaxtrain export --workdir=runs/short --format=onnx",
            "jaxtrain export --workdir=runs/short --format=savedmodel,stablehlo --output=models",
            "jaxtrain export --workdir=runs/short --format=tflite --quantize=int8 --verify=all",
        ),
        flags=(
            Flag("workdir", "DIR", "folder of the run (needed)"),
            Flag("format", "NAME,...", "savedmodel, stablehlo, tflite, onnx: one or several"),
            Flag(
                "output",
                "PATH",
                "folder to make; with several formats, of one folder each; "
                "DIR/export/FORMAT-STEP unless said",
            ),
            _CHECKPOINT,
            Flag("platforms", "NAME,...", "for stablehlo: cpu, cuda, rocm, tpu; cpu unless said"),
            Flag("quantize", "int8|float16", "for tflite: smaller weights"),
            Flag("verify", "N|all", "examples to compare with the checkpoint; 256 unless said"),
            Flag(
                "tolerance",
                "X",
                "largest difference of a probability to accept, whatever the classes; 1e-4 unless "
                "said, and more if quantized",
            ),
            Flag("overwrite", None, "replace an export that is there"),
            _DEBUG,
        ),
        keys="set data.path and the like, eval.weights, train.export_replica, parallel.*",
        request=export_request,
        run="jaxtrain.export:export",
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
                "scan",
                None,
                "read every example: find those that cannot be decoded or are in two splits",
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
