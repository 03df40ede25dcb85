"""Strict values: types, ranges, and keys that contradict each other."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from jaxtrain.config import Config, flatten, from_dict, key_docs
from jaxtrain.config.checks import all_positive
from jaxtrain.errors import UsageError


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys to nested values, with what a Config needs at least."""
    values: dict[str, Any] = {"train": {"epochs": 1}}
    for name, value in flat.items():
        *path, leaf = name.split(".")
        section = values
        for part in path:
            section = section.setdefault(part, {})
        section[leaf] = value
    return values


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("optimizer.learning_rate", 1, 1.0),
        ("optimizer.learning_rate", np.float32(0.5), 0.5),
        ("optimizer.weight_decay", -0.0, 0.0),
        ("optimizer.clip_norm", None, None),
        ("train.batch_size", 32.0, 32),
        ("train.batch_size", np.int64(32), 32),
        ("seed", 2**32 - 1, 2**32 - 1),
        ("optimizer.nesterov", True, True),
        ("model.mlp.hidden_sizes", [64, 32.0], (64, 32)),
        ("model.mlp.hidden_sizes", (), ()),
        ("schedule.boundaries", [1, 2.5], (1.0, 2.5)),
        ("data.class_names", ["cat", "dog"], ("cat", "dog")),
        ("data.path", None, None),
        (
            "model.args",
            {"a": [1, [2.5, None]], "b": {"c": True, "d": "x"}},
            {"a": (1, (2.5, None)), "b": {"c": True, "d": "x"}},
        ),
    ],
)
def test_accepts(name: str, given: Any, expected: Any) -> None:
    value = flatten(from_dict(nested({name: given})))[name]
    assert value == expected
    assert type(value) is type(expected)
    assert math.copysign(1, value) == 1 if isinstance(value, float) else True


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("optimizer.learning_rate", "fast", "optimizer.learning_rate='fast' must be a number"),
        ("optimizer.learning_rate", True, "optimizer.learning_rate=True must be a number"),
        ("optimizer.learning_rate", math.nan, "optimizer.learning_rate=nan must be finite"),
        ("optimizer.learning_rate", -math.inf, "optimizer.learning_rate=-inf must be finite"),
        ("optimizer.learning_rate", 10**400, "must be finite"),
        ("optimizer.learning_rate", 0, "optimizer.learning_rate=0 must be above 0"),
        ("optimizer.learning_rate", None, "a value is needed (default: 0.001)"),
        ("optimizer.clip_norm", "1", "optimizer.clip_norm='1' must be a number or None"),
        ("train.batch_size", 1.5, "train.batch_size=1.5 must be a whole number"),
        ("train.batch_size", math.nan, "train.batch_size=nan must be a whole number"),
        ("train.batch_size", True, "train.batch_size=True must be a whole number"),
        ("train.batch_size", 2**63, "must fit in 64 bits"),
        ("train.batch_size", -1, "train.batch_size=-1 must be above 0"),
        ("optimizer.nesterov", 1, "optimizer.nesterov=1 must be true or false"),
        ("optimizer.nesterov", "true", "optimizer.nesterov='true' must be true or false"),
        ("model.name", 3, "model.name=3 must be text"),
        ("model.name", "", "model.name='' must not be empty"),
        ("model.mlp.hidden_sizes", 512, "must be a tuple of whole numbers"),
        ("model.mlp.hidden_sizes", "512", "must be a tuple of whole numbers"),
        ("model.mlp.hidden_sizes", [512, True], "must hold only whole numbers, not True"),
        ("model.mlp.hidden_sizes", [512, 0], "must hold only values above 0"),
        ("schedule.boundaries", [1, math.inf], "must be finite"),
        ("data.class_names", ["cat", 1], "must hold only text, not 1"),
        ("data.class_names", ["cat", ""], "must hold one name a class, none empty"),
        ("data.class_names", [], "must hold one name a class, none empty"),
        ("data.class_names", ["cat", "dog", "cat"], "data.class_names holds 'cat' twice"),
        ("data.cache", "ram", "data.cache='ram' must be one of auto, device, memory"),
        ("optimizer.skip_nonfinite", 10**7, "must be between 0 and 1000000"),
        ("seed", 2**32, "seed=4294967296 must be between 0 and 4294967295"),
        ("model.args", [1], "model.args=[1] must be a dict"),
        ("model.args", {"a": math.nan}, "model.args.a=nan must be finite"),
        ("model.args", {"a": {"b": {1}}}, "model.args.a.b={1} must be a number, text"),
        ("model.args", {"a": 1j}, "model.args.a=1j must be a number, text"),
        ("model.args", {"a-b": 1}, "model.args.a-b: 'a-b' cannot be the name of an argument"),
        ("model.args", {"class": 1}, "'class' cannot be the name of an argument"),
        ("model.args", {1: 1}, "'1' cannot be the name of an argument"),
        ("optimizer", 3, "optimizer=3 must be a group of keys"),
        ("optimizer.lerning_rate", 3, "did you mean optimizer.learning_rate?"),
        ("train.optimizer.learning_rate", 3, "did you mean optimizer?"),
        ("trian.epochs", 3, "unknown key trian; did you mean train?"),
        ("nonsense", 3, "unknown key nonsense; the config has seed, data, model,"),
        ("train.qqq", 3, "train has train.batch_size, train.accumulate, "),
        ("data.path", "a\0b", "must be text without NUL bytes"),
        ("data.class_names", ["a", "\ud800"], "characters that UTF-8 cannot encode"),
        ("model.args", {"a": "\0"}, "must be text without NUL bytes"),
        ("data.image_size", [1, 2, 3], "must be one side or height,width"),
        ("data.eval_crop", 0, "data.eval_crop=0 must be at least 0.01 and at most 1"),
        ("data.synthetic.image_shape", [8, 8], "must be height,width,channels"),
        ("data.synthetic", 3, "data.synthetic=3 must be a group of keys"),
        ("train.steps_per_call", 0, "train.steps_per_call=0 must be between 1 and 1000"),
    ],
)
def test_refuses(name: str, given: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_dict(nested({name: given}))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "first", "second"),
    [
        ({"train.epochs": 2, "train.steps": 3}, "train.epochs=2 ", "train.steps=3 "),
        ({"train.epochs": None}, "neither train.epochs", "nor train.steps"),
        (
            {"schedule.warmup_steps": 0, "schedule.warmup_epochs": 1},
            "schedule.warmup_steps=0 ",
            "schedule.warmup_epochs=1 ",
        ),
        (
            {"eval.every_steps": 5, "eval.every_epochs": 0.5},
            "eval.every_steps=5 ",
            "--config.eval.every_epochs=None",
        ),
        (
            {"checkpoint.every_steps": 5, "checkpoint.every_epochs": 0.5},
            "checkpoint.every_steps=5 ",
            "--config.checkpoint.every_epochs=None",
        ),
        (
            {"data.class_names": ["a", "b"], "data.num_classes": 3},
            "data.class_names holds 2 names",
            "data.num_classes=3",
        ),
    ],
)
def test_keys_that_contradict_each_other(values: dict[str, Any], first: str, second: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_dict(nested(values))
    assert first in str(caught.value)
    assert second in str(caught.value)


def test_a_key_not_given_has_the_default_and_the_config_is_frozen() -> None:
    config = from_dict({"train": {"steps": 5}})
    for name, value in flatten(config).items():
        assert value == (5 if name == "train.steps" else key_docs()[name].default), name
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.train.steps = 6  # type: ignore[misc]


def test_every_default_passes_its_own_check() -> None:
    for key in key_docs().values():
        if key.default is not None and key.check is not None:
            assert key.check(key.default) is None, key.name


def test_key_docs() -> None:
    docs = key_docs()
    assert list(docs)[:2] == ["seed", "data.source"]
    sizes = docs["model.mlp.hidden_sizes"]
    assert (sizes.kind, sizes.element, sizes.optional) == (tuple, int, False)
    assert (sizes.default, sizes.check, sizes.free) == ((512,), all_positive, False)
    clip = docs["optimizer.clip_norm"]
    assert (clip.kind, clip.element, clip.optional, clip.default) == (float, None, True, None)
    assert docs["eval.batch_size"].free
    assert all(key.doc and "\n" not in key.doc for key in docs.values())
    assert {key.kind for key in docs.values()} == {int, float, bool, str, tuple, dict}


def test_free_keys_are_those_of_the_design() -> None:
    free = {name for name, key in key_docs().items() if key.free}
    sections = ("eval.", "checkpoint.", "parallel.", "report.")
    of_sections = {name for name in key_docs() if name.startswith(sections)}
    others = {
        f"data.{name}" for name in ("path", "download", "cache", "cache_path", "threads", "ahead")
    }
    assert free == of_sections | others | {"train.steps_per_call"}


def test_a_config_has_no_other_way_in() -> None:
    with pytest.raises(TypeError):
        Config(3)  # type: ignore[misc]
