"""`base_config`: the schema as the ConfigDict that a recipe edits."""

import copy
from collections.abc import Mapping
from typing import Any, Self

from ml_collections import config_dict  # type: ignore[import-untyped]

from jaxtrain.config.table import Key, key_docs, sections, unknown_key
from jaxtrain.config.values import check_value


class RecipeDict(config_dict.ConfigDict):
    """One section of `base_config()`: checks every key where it is set.

    A ConfigDict of its own kind for its messages: they have the key's full name and one line, and
    they come at the recipe's line that is wrong.

    Args:
        prefix: the section's dotted name with a final dot; empty for the whole config.
        assigned: collects the dotted names that somebody set; shared by all sections.
    """

    def __init__(self, prefix: str, assigned: set[str]) -> None:
        super().__init__(sort_keys=False)
        object.__setattr__(self, "_prefix", prefix)
        object.__setattr__(self, "_assigned", assigned)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in self:
            return super().__getattr__(name)
        raise unknown_key(f"{self._prefix}{name}")

    def __setitem__(self, name: str, value: Any) -> None:
        dotted = f"{self._prefix}{name}"
        if dotted in sections() and isinstance(value, Mapping | config_dict.ConfigDict):
            for inner, item in value.items():
                self[name][inner] = item
            return
        if dotted not in key_docs():
            raise unknown_key(dotted)
        super().__setitem__(name, _checked(key_docs()[dotted], value))
        self._assigned.add(dotted)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = type(self)(self._prefix, copy.deepcopy(self._assigned, memo))
        for name, value in self.items(preserve_field_references=True):
            twin.define(name, copy.deepcopy(value, memo))
        return twin.lock() if self.is_locked else twin

    def assigned(self) -> frozenset[str]:
        """The dotted names of the keys that were set, to the default or to anything else."""
        return frozenset(self._assigned)

    def define(self, name: str, value: Any) -> None:
        """Adds a key or a section with its default, which does not count as set."""
        super().__setitem__(name, value)


class Arguments(config_dict.ConfigDict):
    """The free-form `model.args`: never locked, and an argument may change its type.

    Args:
        arguments: name to value.
    """

    def __init__(self, arguments: Mapping[str, Any] | None = None) -> None:
        super().__init__(arguments, type_safe=False, sort_keys=False)

    def lock(self) -> Self:
        """Leaves it open; called when the config around it is locked."""
        return self


def base_config() -> RecipeDict:
    """All keys at their defaults, locked: a recipe sets what it wants and returns it.

    An optional key that is None knows its type. `config.model.args` takes any argument.
    """
    assigned: set[str] = set()
    holders = {"": RecipeDict("", assigned)}
    for name in sections():
        parent, _, leaf = name.rpartition(".")
        holders[name] = RecipeDict(f"{name}.", assigned)
        holders[parent].define(leaf, holders[name])
    for name, key in key_docs().items():
        section, _, leaf = name.rpartition(".")
        default = config_dict.placeholder(key.kind) if key.default is None else key.default
        holders[section].define(leaf, Arguments(default) if key.kind is dict else default)
    root = holders[""]
    root.lock()
    return root


def _checked(key: Key, value: Any) -> Any:
    if isinstance(value, config_dict.FieldReference):  # its value may still change
        return value
    plain = value.to_dict() if isinstance(value, config_dict.ConfigDict) else value
    typed = check_value(key, plain)
    return Arguments(typed) if key.kind is dict else typed
