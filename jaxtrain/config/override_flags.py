"""`--config.KEY=TEXT` in all its spellings to {key: text}, by absl and `config_flags`.

`config_flags` finds and defines the flags; what the text means is for `jaxtrain.config.text` to
say, by the schema: `config_flags` itself knows a key only by its Python type, and so cannot unset
an optional key, and takes `a,b` for one name and `1e3` for no integer.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags
from ml_collections import config_dict, config_flags  # type: ignore[import-untyped]

from jaxtrain.config.text import find_key
from jaxtrain.errors import UsageError

_OVERRIDE = re.compile(r"--?(?P<no>no)?config\.(?P<name>[^=]*)(?P<value>=.*)?", re.DOTALL)

# A key of type bool may stand alone, as --config.KEY and --noconfig.KEY; its text stays text too.
config_flags.register_flag_parser_for_type(bool, flags.ArgumentParser())


def define_override_flags(
    values: flags.FlagValues, argv: Sequence[str]
) -> Callable[[], dict[str, str]]:
    """Defines a flag for every key that is overridden in `argv`.

    Args:
        values: the flags of the command; they parse `argv` afterwards.
        argv: the words of the command line, flag files expanded.

    Returns:
        A function to be called after parsing: the dotted keys with their texts.

    Raises:
        UsageError: a key that the schema does not have, or a form that its type does not allow.
    """
    words = [word for word in argv if _OVERRIDE.fullmatch(word)]
    form = config_dict.ConfigDict(type_safe=False)
    for name in _names(words):
        *sections, leaf = name.split(".")
        holder = form
        for section in sections:
            if section not in holder:
                holder[section] = config_dict.ConfigDict(type_safe=False)
            holder = holder[section]
        holder[leaf] = config_dict.placeholder(_flag_type(name))
    own = flags.FlagValues()
    config_flags.DEFINE_config_dict(
        "config", form, flag_values=own, lock_config=False, sys_argv=words
    )
    for name in own:
        if name != "config":
            values[name] = own[name]

    def overrides() -> dict[str, Any]:
        return dict(config_flags.get_override_values(own["config"]))

    return overrides


def _names(words: Sequence[str]) -> list[str]:
    """The keys in the words, each once; refuses those that cannot be."""
    names = []
    for word in words:
        match = _OVERRIDE.fullmatch(word)
        assert match is not None
        name = match["name"]
        key, arguments = find_key(name)
        if match["no"] and (key.kind is not bool or arguments):
            raise UsageError(
                f"--noconfig.{name}: {name} is not true or false; write --config.{name}=VALUE"
            )
        if match["no"] and match["value"]:
            raise UsageError(f"{word}: write --noconfig.{name} or --config.{name}=false")
        names.append(name)
    for name in names:
        inner = next((other for other in names if other.startswith(f"{name}.")), None)
        if inner is not None:
            raise UsageError(
                f"--config.{name} and --config.{inner} cannot be given together; put all in one"
            )
    return list(dict.fromkeys(names))


def _flag_type(name: str) -> type:
    key, arguments = find_key(name)
    return bool if key.kind is bool and not arguments else str
