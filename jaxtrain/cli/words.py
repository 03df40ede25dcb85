"""The words of the command line to a verb and its flags, by absl."""

import difflib
import re
from collections.abc import Sequence
from typing import Any

from absl import flags

from jaxtrain.cli.requests import Given
from jaxtrain.cli.verbs import VERBS, Flag
from jaxtrain.config import BOOLEANS, key_docs, nearest, packaged_recipes
from jaxtrain.config.override_flags import define_override_flags
from jaxtrain.errors import UsageError


def read_words(words: Sequence[str]) -> tuple[str, Given]:
    """The verb, and what the command line says to it; flags may come in any order.

    Raises:
        UsageError: an unknown verb, flag or key, a flag of another verb, a missing value, or a
            word too many.
    """
    values = flags.FlagValues()
    values.set_gnu_getopt(True)
    for verb in VERBS.values():
        for flag in verb.flags:
            if flag.name not in values:
                values[flag.name] = _absl_flag(flag)
    known = list(values)
    argv = _expand_flag_files(values, words)
    overrides = define_override_flags(values, argv)
    try:
        _, *rest = values(["jaxtrain", *argv])
    except flags.UnrecognizedFlagError as error:
        raise _unknown_flag(error.flagname, known) from error
    except (flags.Error, ValueError) as error:
        text = str(error).removeprefix("flag ")
        missing = re.fullmatch(r"Missing value for flag (\S+)", text)
        raise UsageError(f"{missing[1]} needs a value" if missing else text) from error
    name, *others = _with_verb(rest)
    given = {flag: values[flag].value for flag in known}
    return name, Given(_own_flags(name, given), overrides(), tuple(others))


class _Switch(flags.ArgumentParser[bool]):
    """True or false in the same words as for a key."""

    def parse(self, argument: str) -> bool:
        value = BOOLEANS.get(argument.casefold())
        if value is None:
            raise ValueError("must be true or false")
        return value


def _absl_flag(flag: Flag) -> "flags.Flag[Any]":
    parser: flags.ArgumentParser[Any] = flags.ArgumentParser() if flag.value else _Switch()
    return flags.Flag(parser, None, flag.name, None, flag.doc, boolean=flag.value is None)


def _expand_flag_files(values: flags.FlagValues, words: Sequence[str]) -> list[str]:
    try:
        return values.read_flags_from_files(words)
    except flags.CantOpenFlagFileError as error:
        cause = error.__context__
        assert isinstance(cause, OSError)
        raise UsageError(f"--flagfile={cause.filename}: {cause.strerror}") from error
    except (flags.Error, ValueError) as error:
        raise UsageError("--flagfile needs a value: a text file with one flag a line") from error


def _unknown_flag(name: str, known: Sequence[str]) -> UsageError:
    near = [] if name in key_docs() else difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    if not near:
        tops = nearest(name)
        keys = [key for key in key_docs() if any(f"{key}.".startswith(f"{top}.") for top in tops)]
        near = [f"config.{key}" for key in keys[:3]]
    if not near:
        return UsageError(f"unknown flag --{name}; 'jaxtrain VERB --help' lists the flags")
    return UsageError(f"unknown flag --{name}; did you mean --{' or --'.join(near)}?")


def _with_verb(rest: Sequence[str]) -> Sequence[str]:
    """The verb and the words that it takes."""
    if not rest:
        raise UsageError(f"no verb; write 'jaxtrain VERB ...' with {' or '.join(VERBS)}")
    name, *stray = rest
    if name not in VERBS:
        near = difflib.get_close_matches(name, VERBS, n=1)
        verbs = f"the verbs are {', '.join(VERBS)}, see 'jaxtrain --help'"
        hint = f"did you mean {near[0]}?" if near else verbs
        raise UsageError(f"unknown verb {name!r}; {hint}")
    if stray and VERBS[name].words is None:
        raise _stray(name, stray[0])
    return rest


def _stray(verb: str, word: str) -> UsageError:
    if word.casefold() in BOOLEANS:
        hint = f"a true-or-false flag takes its value after '=', as in --FLAG={word}"
    elif word.startswith("config."):
        hint = f"did you mean --{word}?"
    elif word.endswith((".py", ".json")) or word in packaged_recipes():
        hint = f"did you mean --config={word}?"
    else:
        hint = f"{verb} takes only flags, see 'jaxtrain {verb} --help'"
    return UsageError(f"stray word {word!r}; {hint}")


def _own_flags(verb: str, given: dict[str, Any]) -> dict[str, Any]:
    """The verb's flags; refuses those of other verbs and values that nobody means."""
    own = {flag.name: flag for flag in VERBS[verb].flags}
    for name, value in given.items():
        if value is None:
            continue
        if name not in own:
            takes = ", ".join(f"--{flag}" for flag in own)
            raise UsageError(f"--{name} is not a flag of {verb}, which takes {takes}, --config.KEY")
        if isinstance(value, str) and (not value or value.startswith("--")):
            raise UsageError(f"--{name} needs a value: --{name}={own[name].value}")
    return {name: given[name] for name in own}
