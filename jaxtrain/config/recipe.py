"""A config's file to values: a `.py` recipe, a packaged recipe's name, or a `config.json`."""

import dataclasses
import difflib
import sys
import traceback
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import config_dict  # type: ignore[import-untyped]

from jaxtrain.config.base import RecipeDict
from jaxtrain.config.schema import Config
from jaxtrain.config.store import read_json
from jaxtrain.config.table import key_docs, sections
from jaxtrain.config.text import find_key, override_values
from jaxtrain.config.values import build, check_values
from jaxtrain.errors import UsageError

_PACKAGE = Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What a config's file sets.

    Attributes:
        name: stem of the file.
        label: the file as a person would name it.
        values: dotted key to value, checked; only the keys that the file sets.
    """

    name: str
    label: str
    values: Mapping[str, Any]


def load_recipe(reference: str) -> Recipe:
    """What `--config=reference` sets.

    Args:
        reference: a `.py` file, a `.json` file, or the name of a packaged recipe.

    Raises:
        UsageError: no such file or name, a broken file, or a bad key or value in it.
    """
    path = Path(reference).expanduser()
    if path.suffix in (".py", ".json"):
        if not path.is_file():
            raise UsageError(f"--config={reference}: no such file{_packaged_hint(path.stem)}")
        return _load_file(path, reference)
    packaged = packaged_recipes()
    if reference in packaged:
        return _load_file(packaged[reference], f"configs/{reference}.py")
    raise UsageError(
        f"--config={reference} must be a .py file, a config.json or the name of a packaged config "
        f"({', '.join(packaged)}){_suffix_hint(path) or _packaged_hint(path.stem)}"
    )


def resolve(recipe: Recipe, overrides: Mapping[str, str]) -> tuple[Config, dict[str, str]]:
    """A recipe with the command line's overrides to the Config and the source of every key.

    Args:
        recipe: the values of the config's file.
        overrides: dotted key to the text of its value.

    Returns:
        The Config, and dotted key to "command line", the recipe's label or "default".

    Raises:
        UsageError: a bad override, or keys that contradict each other.
    """
    config = build(override_values(recipe.values, overrides))
    refuse_unread(config.model.name, overrides)
    sources = {name: recipe.label if name in recipe.values else "default" for name in key_docs()}
    sources.update({find_key(name)[0].name: "command line" for name in overrides})
    return config, sources


def refuse_unread(model: str, overrides: Mapping[str, str]) -> None:
    """Refuses keys of another model on the command line; a recipe may have them.

    So a recipe's `model.mlp.*` do not keep `--config.model.name=resnet18` from working alone.

    Args:
        model: the model's name.
        overrides: keys that are set, to their texts.

    Raises:
        UsageError: it does not read one of them.
    """
    groups = {name.split(".")[1] for name in sections() if name.startswith("model.")}
    own = next((group for group in groups if model.startswith(group)), None)
    if own is None and ":" not in model:
        return  # an unknown name, which the table of models refuses
    for name in overrides:
        group = find_key(name)[0].name.split(".")[1:2]
        if name.startswith("model.") and group[0] in groups - {own}:
            raise UsageError(
                f"--config.{name} is set, but model.name={model} does not read it; leave it out"
            )


def packaged_recipes() -> dict[str, Path]:
    """The recipes that come with jaxtrain: name to file."""
    in_wheel, in_checkout = _PACKAGE / "configs", _PACKAGE.parent / "configs"
    folder = in_wheel if in_wheel.is_dir() else in_checkout
    return {path.stem: path for path in sorted(folder.glob("*.py")) if path.stem != "__init__"}


def _load_file(path: Path, label: str) -> Recipe:
    if path.suffix == ".json":
        values: Any = read_json(path)
        assigned = None
    else:
        returned = _run(path, label)
        is_config = isinstance(returned, config_dict.ConfigDict)
        try:
            values = returned.to_dict() if is_config else returned
        except config_dict.RequiredValueError as error:
            raise UsageError(f"{label}: {error}; give it a value in the config") from error
        assigned = returned.assigned() if isinstance(returned, RecipeDict) else None
    try:
        flat = check_values(values)
    except UsageError as error:
        raise UsageError(f"{label}: {error}") from error
    if assigned is not None:
        # model.args is filled in place, without being assigned
        keys = key_docs()
        flat = {n: v for n, v in flat.items() if n in assigned or v != keys[n].default}
    return Recipe(name=path.stem, label=label, values=flat)


def _run(path: Path, label: str) -> Any:
    """What the file's `get_config()` returns, a ConfigDict or a dict.

    The file is run from its text, so that no compiled copy is left beside it.
    """
    module = types.ModuleType("jaxtrain_recipe")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses in a recipe look their module up
    try:
        exec(compile(path.read_bytes(), path, "exec"), module.__dict__)
        get_config = getattr(module, "get_config", None)
        if callable(get_config):
            returned = get_config()
    except (Exception, SystemExit) as error:
        raise UsageError(f"{label}{_where(error, path)}: {_what(error)}") from error
    if not callable(get_config):
        raise UsageError(f"{label} has no get_config(); define it and let it return the config")
    if not isinstance(returned, config_dict.ConfigDict | dict):
        what = "nothing" if returned is None else type(returned).__name__
        raise UsageError(f"{label}: get_config() returned {what}; let it return the config")
    return returned


def _where(error: BaseException, path: Path) -> str:
    """The last line of the file that was being run, as ` line 7`; empty if there is none."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f" line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f" line {lines[-1]}" if lines else ""


def _what(error: BaseException) -> str:
    if isinstance(error, UsageError):
        return str(error)
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {' '.join(text.split())}"


def _suffix_hint(path: Path) -> str:
    for suffix in (".py", ".json"):
        if Path(f"{path}{suffix}").is_file():
            return f"; did you mean --config={path}{suffix}?"
    if (path / "config.json").is_file():
        return f"; did you mean --workdir={path}?"
    return ""


def _packaged_hint(stem: str) -> str:
    near = difflib.get_close_matches(stem, packaged_recipes(), n=1)
    return f"; did you mean the packaged --config={near[0]}?" if near else ""
