"""The texts of `--help`."""

import textwrap

from jaxtrain import __version__
from jaxtrain.cli.verbs import VERBS
from jaxtrain.config import packaged_recipes


def command_help() -> str:
    """What `jaxtrain --help` prints: the verbs, one line and one example each."""
    lines = [f"jaxtrain {__version__}: train, evaluate, use and ship image classifiers in JAX", ""]
    for name, verb in VERBS.items():
        lines += [f"  {name:<8}{verb.summary}", f"          {verb.examples[0]}"]
    lines += [
        "",
        "jaxtrain VERB --help lists a verb's flags. jaxtrain --version prints the version.",
        *textwrap.wrap(
            f"Packaged configs: {', '.join(packaged_recipes())}", 100, subsequent_indent="  "
        ),
    ]
    return "\n".join(lines) + "\n"


def verb_help(name: str) -> str:
    """What `jaxtrain VERB --help` prints: the verb's flags, examples, and where the keys are."""
    verb = VERBS[name]
    rows = [] if verb.words is None else [verb.words]
    rows += [
        (f"--{flag.name}" + (f"={flag.value}" if flag.value else ""), flag.doc)
        for flag in verb.flags
    ]
    rows += [
        ("--config.KEY=VALUE", verb.keys),
        ("--flagfile=FILE", "read more flags from a file, one a line"),
    ]
    width = max(len(left) for left, _ in rows) + 2
    lines = [f"jaxtrain {name}: {verb.summary}", ""]
    for left, right in rows:
        first, *others = textwrap.wrap(right, 98 - width)
        lines += [f"  {left:<{width}}{first}", *(" " * (width + 2) + other for other in others)]
    lines += ["", "Examples:", *(f"  {example}" for example in verb.examples), ""]
    lines.append("All keys with their meaning: jaxtrain check --config=mnist_mlp --print_config")
    return "\n".join(lines) + "\n"
