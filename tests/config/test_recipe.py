"""Recipes: `base_config()`, and the files that `--config` can name."""

import copy
import json
from pathlib import Path
from typing import Any

import ml_collections
import pytest

from jaxtrain.config import base_config, flatten, from_dict, key_docs, load_recipe, resolve
from jaxtrain.config.recipe import packaged_recipes
from jaxtrain.errors import UsageError

HEAD = "from jaxtrain.config import base_config\n\ndef get_config():\n    config = base_config()\n"
TAIL = "    return config\n"


def recipe(folder: Path, *lines: str) -> str:
    path = folder / "mine.py"
    path.write_text(HEAD + "".join(f"    {line}\n" for line in lines) + TAIL)
    return str(path)


def test_base_config_is_the_schema() -> None:
    config = base_config()
    assert isinstance(config, ml_collections.ConfigDict)
    assert config.is_locked
    config.train.epochs = 1
    assert from_dict(config.to_dict()) == from_dict({"train": {"epochs": 1}})
    assert config.assigned() == {"train.epochs"}


def test_a_recipe_sets_keys_in_every_way_of_a_config_dict(tmp_path: Path) -> None:
    reference = recipe(
        tmp_path,
        "config.train.epochs = 2.0",
        "config['seed'] = 5.0",
        "config.optimizer.clip_norm = 1",
        "config.optimizer.clip_norm = None",
        "config.optimizer.learning_rate *= 2",
        "config.model.mlp = {'hidden_sizes': [32, 16], 'dropout': 0}",
        "config.data.class_names = ['a', 'b']",
        "config.model.args.width = 3",
        "config.model.args.width = 'wide'",
        "config.eval.update(batch_size=10)",
        "config.update({'report': {'tensorboard': False}})",
        "config.update_from_flattened_dict({'checkpoint.keep': 2})",
        "config.schedule.warmup_steps = config.train.get_ref('batch_size')",
        "config.train.batch_size = 7",
    )
    loaded = load_recipe(reference)
    assert loaded.name == "mine"
    assert loaded.label == reference
    config, sources = resolve(loaded, {})
    expected = {
        "train.epochs": 2.0,
        "seed": 5,
        "optimizer.clip_norm": None,
        "optimizer.learning_rate": 2e-3,
        "model.mlp.hidden_sizes": (32, 16),
        "model.mlp.dropout": 0.0,
        "data.class_names": ("a", "b"),
        "model.args": {"width": "wide"},
        "eval.batch_size": 10,
        "report.tensorboard": False,
        "checkpoint.keep": 2,
        "schedule.warmup_steps": 7,
        "train.batch_size": 7,
    }
    defaults = {name: key.default for name, key in key_docs().items()}
    assert flatten(config) == {**defaults, **expected}
    # A key set to its default was set all the same.
    assert {name for name, source in sources.items() if source == reference} == set(expected)
    assert all(source == "default" for name, source in sources.items() if name not in expected)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("config.train.epoch = 3", "unknown key train.epoch; did you mean train.epochs?"),
        ("config.optimzer.name = 'sgd'", "unknown key optimzer; did you mean optimizer?"),
        ("config['trian'] = 3", "unknown key trian; did you mean train?"),
        ("config.model = {'nam': 'mlp'}", "unknown key model.nam; did you mean model.name?"),
        ("config.update({'modle': {}})", "unknown key modle; did you mean model?"),
        ("config.optimizer = 'adam'", "optimizer is a section, not a key; it has optimizer.name,"),
        ("config.train.batch_size = 1.5", "train.batch_size=1.5 must be a whole number"),
        ("config.train.batch_size = None", "train.batch_size=None: a value is needed"),
        ("config.optimizer.nesterov = 1", "optimizer.nesterov=1 must be true or false"),
        ("config.optimizer.learning_rate = -1", "optimizer.learning_rate=-1 must be above 0"),
        (
            "config.model.mlp.hidden_sizes = 512",
            "model.mlp.hidden_sizes=512 must be a tuple of whole numbers",
        ),
        ("config.model.args = 3", "model.args=3 must be a dict"),
        ("config.unlock(); config.foo = 3", "unknown key foo; the config has seed, data,"),
    ],
)
def test_a_wrong_line_of_a_recipe(tmp_path: Path, line: str, message: str) -> None:
    reference = recipe(tmp_path, "pass", line)
    with pytest.raises(UsageError) as caught:
        load_recipe(reference)
    assert str(caught.value).startswith(f"{reference} line 6: {message}")
    assert "\n" not in str(caught.value)


def test_a_reference_and_an_argument_are_checked_when_the_recipe_is_done(tmp_path: Path) -> None:
    lines = ("config.train.steps = config.train.get_ref('batch_size') * 0",)
    with pytest.raises(UsageError, match=r"mine\.py: train\.steps=0 must be above 0"):
        load_recipe(recipe(tmp_path, *lines))
    with pytest.raises(UsageError, match=r"mine\.py: model\.args\.a=nan must be finite"):
        load_recipe(recipe(tmp_path, "config.model.args.a = float('nan')"))


def test_has_and_copy() -> None:
    config = base_config()
    config.train.steps = 3
    assert hasattr(config, "train")
    assert not hasattr(config, "trian")
    twin = copy.deepcopy(config)
    assert twin == config
    assert twin.is_locked
    twin.train.steps = 4
    twin.model.args.width = 4
    assert config.train.steps == 3
    assert config.model.args.to_dict() == {}
    twin.seed = 1
    assert twin.assigned() == {"train.steps", "seed"}
    assert config.assigned() == {"train.steps"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def get_config(:\n    pass\n", " line 1: SyntaxError: invalid syntax"),
        ("x = 1\n\nx.y\n", " line 3: AttributeError: 'int' object has no attribute 'y'"),
        ("import nonsense_module\n", " line 1: ModuleNotFoundError: No module named 'nonsense_mo"),
        ("import sys\nsys.exit('no')\n", " line 2: SystemExit: no"),
        ("def get_config():\n    raise ValueError('one\\n two')\n", " line 2: ValueError: one two"),
        ("def get_config():\n    return 1 / 0\n", " line 2: ZeroDivisionError: division by zero"),
        ("def get_config(mode):\n    pass\n", ": TypeError: get_config() missing 1 required pos"),
        ("", " has no get_config(); define it and let it return the config"),
        ("get_config = 3\n", " has no get_config(); define it and let it return the config"),
        ("def get_config():\n    pass\n", ": get_config() returned nothing; let it return the co"),
        ("def get_config():\n    return 3\n", ": get_config() returned int; let it return the con"),
        ("x = '\0'\n", "source code string cannot contain null bytes"),
    ],
)
def test_a_broken_recipe(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_recipe(str(path))
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_error_in_a_module_of_the_recipe_names_the_recipes_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recipe_helper_for_test.py").write_text(
        "\n\n\ndef fail():\n    raise KeyError(1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    reference = recipe(tmp_path, "import recipe_helper_for_test", "recipe_helper_for_test.fail()")
    with pytest.raises(UsageError, match=r"mine\.py line 6: KeyError: 1"):
        load_recipe(reference)


@pytest.mark.parametrize(
    "returned", ["ConfigDict({'train': {'epochs': 4}})", "{'train': {'epochs': 4}}"]
)
def test_a_recipe_may_return_only_some_keys(tmp_path: Path, returned: str) -> None:
    path = tmp_path / "some.py"
    path.write_text(
        f"from ml_collections import ConfigDict\n\ndef get_config():\n    return {returned}\n"
    )
    loaded = load_recipe(str(path))
    assert loaded.values == {"train.epochs": 4.0}


def test_a_recipe_may_define_dataclasses_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "from __future__ import annotations\nimport dataclasses\n\n"
        "@dataclasses.dataclass\nclass Size:\n    width: int = 4\n\n"
        "def get_config():\n    return {'train': {'steps': Size().width}}\n"
    )
    assert load_recipe(str(path)).values == {"train.steps": 4}
    assert [entry.name for entry in tmp_path.iterdir()] == ["own.py"]


def test_a_config_json(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"train": {"steps": 4}}))
    config, sources = resolve(load_recipe(str(path)), {"seed": "3"})
    assert (config.train.steps, config.seed) == (4, 3)
    assert sources["train.steps"] == str(path)
    assert sources["seed"] == "command line"
    assert sources["model.name"] == "default"


@pytest.mark.parametrize("name", sorted(packaged_recipes()))
def test_every_packaged_recipe_loads_and_says_its_command(name: str) -> None:
    loaded = load_recipe(name)
    assert (loaded.name, loaded.label) == (name, f"configs/{name}.py")
    resolve(loaded, {})
    assert f"jaxtrain train --config={name}" in packaged_recipes()[name].read_text()


def test_mnist_mlp_is_packaged() -> None:
    config, _ = resolve(load_recipe("mnist_mlp"), {})
    assert config.model.mlp.hidden_sizes == (512,)
    assert config.train.epochs is not None
    assert config.train.epochs <= 10


def test_procedures_of_resnet_strikes_back_differ_as_in_its_table() -> None:
    """Wightman et al. (2021), table 2; timm's magnitudes, 7 and 6, go to 10, and these to 30."""
    a2, a3 = (
        flatten(resolve(load_recipe(f"imagenet_resnet50_{name}"), {})[0]) for name in ("a2", "a3")
    )
    augment = (
        "flip|randaugment(layers=2, magnitude={}, p=0.5, fill=0.45)"
        "|mixup_or_cutmix(mixup=0.1, cutmix=1.0)"
    )
    assert {key: (a2[key], a3[key]) for key in a2 if a2[key] != a3[key]} == {
        "data.image_size": ((224,), (160,)),
        "data.eval_image_size": (None, (224,)),
        "data.augment": (augment.format(21), augment.format(18)),
        "model.resnet.stochastic_depth": (0.05, 0.0),
        "optimizer.learning_rate": (5e-3, 8e-3),
        "train.epochs": (300.0, 100.0),
    }


def test_overrides_win_over_the_recipe_and_say_so(tmp_path: Path) -> None:
    reference = recipe(tmp_path, "config.train.epochs = 2", "config.model.args.a = 1")
    overrides = {"train.epochs": "None", "train.steps": "5", "model.args.b": "2"}
    config, sources = resolve(load_recipe(reference), overrides)
    assert (config.train.epochs, config.train.steps) == (None, 5)
    assert config.model.args == {"a": 1, "b": 2}
    command_line = {name for name, source in sources.items() if source == "command line"}
    assert command_line == {"train.epochs", "train.steps", "model.args"}


def test_an_override_mends_a_recipe_that_is_not_whole(tmp_path: Path) -> None:
    loaded = load_recipe(recipe(tmp_path, "config.seed = 1"))
    with pytest.raises(UsageError, match=r"neither train\.epochs nor train\.steps"):
        resolve(loaded, {})
    assert resolve(loaded, {"train.steps": "1"})[0].train.steps == 1


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("nope.py", "--config=nope.py: no such file"),
        ("nope.json", "--config=nope.json: no such file"),
        ("configs/mnist_mpl.py", "no such file; did you mean the packaged --config=mnist_mlp?"),
        ("mnist_mpl", "mnist_resnet); did you mean the packaged --config=mnist_mlp?"),
        ("settings.yaml", "--config=settings.yaml must be a .py file, a config.json or the name"),
        ("settings", "did you mean --config=settings.py?"),
        ("runs/one", "did you mean --workdir=runs/one?"),
        (".", "--config=. must be a .py file"),
        ("folder.py", "--config=folder.py: no such file"),
    ],
)
def test_a_file_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.yaml").write_text("seed: 3\n")
    (tmp_path / "settings.py").write_text("")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "runs/one").mkdir(parents=True)
    (tmp_path / "runs/one/config.json").write_text("{}")
    with pytest.raises(UsageError) as caught:
        load_recipe(reference)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_users_home_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    recipe(tmp_path, "config.train.epochs = 2")
    assert load_recipe("~/mine.py").values == {"train.epochs": 2.0}


def test_values_of_a_recipe_are_plain(tmp_path: Path) -> None:
    def walk(value: Any) -> None:
        assert type(value) in (int, float, bool, str, tuple, dict, type(None))
        for item in value.values() if isinstance(value, dict) else ():
            walk(item)

    reference = recipe(tmp_path, "config.train.epochs = 1", "config.model.args.a = {'b': [1]}")
    for value in load_recipe(reference).values.values():
        walk(value)
