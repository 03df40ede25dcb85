"""What `--config.KEY=TEXT` means, by the key's type."""

from typing import Any

import pytest

from jaxtrain.config import apply_overrides, flatten, from_dict
from jaxtrain.errors import UsageError

BASE = from_dict({"train": {"epochs": 10}, "model": {"args": {"depth": 2, "block": {"norm": 1}}}})

MEANT = [
    ("optimizer.learning_rate", "1e-3", 1e-3),
    ("optimizer.learning_rate", "1", 1.0),
    ("optimizer.learning_rate", " .5 ", 0.5),
    ("optimizer.weight_decay", "0", 0.0),
    ("optimizer.clip_norm", "None", None),
    ("train.batch_size", "64", 64),
    ("train.batch_size", "1e3", 1000),
    ("train.batch_size", "1.0", 1),
    ("train.batch_size", "1_000", 1000),
    ("data.holdout", "none", None),
    ("data.cache", "none", "none"),
    ("model.mlp.hidden_sizes", "512,256", (512, 256)),
    ("model.mlp.hidden_sizes", "(512,256)", (512, 256)),
    ("model.mlp.hidden_sizes", "[512, 256]", (512, 256)),
    ("model.mlp.hidden_sizes", "512", (512,)),
    ("model.mlp.hidden_sizes", "(512,)", (512,)),
    ("model.mlp.hidden_sizes", "512,", (512,)),
    ("model.mlp.hidden_sizes", "1e3,0256", (1000, 256)),
    ("model.mlp.hidden_sizes", "()", ()),
    ("model.mlp.hidden_sizes", "[]", ()),
    ("schedule.boundaries", "2,4.5", (2.0, 4.5)),
    ("data.class_names", "cat,dog", ("cat", "dog")),
    ("data.class_names", "[cat, dog]", ("cat", "dog")),
    ("data.class_names", "0,1", ("0", "1")),
    ("data.class_names", "(0,1,)", ("0", "1")),
    ("data.class_names", "('a,b','c')", ("a,b", "c")),
    ("data.class_names", "None", None),
    ("optimizer.nesterov", "true", True),
    ("optimizer.nesterov", "True", True),
    ("optimizer.nesterov", "yes", True),
    ("optimizer.nesterov", "1", True),
    ("report.tensorboard", "false", False),
    ("report.tensorboard", "no", False),
    ("report.tensorboard", "0", False),
    ("data.path", "/data/my set", "/data/my set"),
    ("data.path", "3", "3"),
    ("data.path", "None", None),
    ("model.args", "{'width': 3}", {"width": 3}),
    ("model.args", "{}", {}),
    ("model.args.width", "3", {"depth": 2, "block": {"norm": 1}, "width": 3}),
    ("model.args.depth", "0.5", {"depth": 0.5, "block": {"norm": 1}}),
    ("model.args.depth", "None", {"depth": None, "block": {"norm": 1}}),
    ("model.args.depth", "true", {"depth": True, "block": {"norm": 1}}),
    ("model.args.depth", "[1, (2, 3)]", {"depth": (1, (2, 3)), "block": {"norm": 1}}),
    ("model.args.depth", "relu", {"depth": "relu", "block": {"norm": 1}}),
    ("model.args.block.norm", "2", {"depth": 2, "block": {"norm": 2}}),
    ("model.args.stem.width", "2", {"depth": 2, "block": {"norm": 1}, "stem": {"width": 2}}),
]

REFUSED = [
    ("optimizer.learning_rate", "abc", "optimizer.learning_rate=abc must be a number"),
    ("optimizer.learning_rate", "", "optimizer.learning_rate='' must be a number"),
    ("optimizer.learning_rate", "1,2", "optimizer.learning_rate=1,2 must be a number"),
    ("optimizer.learning_rate", "nan", "optimizer.learning_rate=nan must be finite"),
    ("optimizer.learning_rate", "inf", "optimizer.learning_rate=inf must be finite"),
    ("optimizer.learning_rate", "-1e-3", "optimizer.learning_rate=-1e-3 must be above 0"),
    ("optimizer.learning_rate", "0", "optimizer.learning_rate=0 must be above 0"),
    ("optimizer.learning_rate", "None", "optimizer.learning_rate=None: a value is needed"),
    ("optimizer.clip_norm", "true", "optimizer.clip_norm=true must be a number or None"),
    ("train.batch_size", "1.5", "train.batch_size=1.5 must be a whole number"),
    ("train.batch_size", "nan", "train.batch_size=nan must be a whole number"),
    ("train.batch_size", "-3", "train.batch_size=-3 must be above 0"),
    ("train.batch_size", "0", "train.batch_size=0 must be above 0"),
    ("train.batch_size", "1e30", "train.batch_size=1e30 must fit in 64 bits"),
    ("train.batch_size", "9" * 5000, "must be a whole number"),
    ("train.batch_size", "None", "train.batch_size=None: a value is needed (default: 128)"),
    ("train.epochs", "None", "neither train.epochs nor train.steps is set"),
    ("train.steps", "5", "train.epochs=10 and train.steps=5 are both set"),
    ("model.mlp.hidden_sizes", "", "model.mlp.hidden_sizes='' must be a tuple of whole numbers"),
    ("model.mlp.hidden_sizes", "512,abc", "must hold only whole numbers, not 'abc'"),
    ("model.mlp.hidden_sizes", "512,,256", "must hold only whole numbers, not ''"),
    ("model.mlp.hidden_sizes", "512 256", "must hold only whole numbers, not '512 256'"),
    ("model.mlp.hidden_sizes", "(512", "must hold only whole numbers, not '(512'"),
    ("model.mlp.hidden_sizes", "1.5", "must hold only whole numbers, not 1.5"),
    ("model.mlp.hidden_sizes", "-1", "must hold only values above 0"),
    ("model.mlp.hidden_sizes", "nan", "must hold only whole numbers, not nan"),
    ("model.mlp.hidden_sizes", "None", "a value is needed (default: (512,))"),
    ("optimizer.nesterov", "maybe", "optimizer.nesterov=maybe must be true or false"),
    ("optimizer.nesterov", "2", "optimizer.nesterov=2 must be true or false"),
    ("optimizer.nesterov", "None", "optimizer.nesterov=None: a value is needed"),
    ("model.name", "", "model.name='' must not be empty"),
    ("model.name", "None", "model.name=None: a value is needed (default: 'mlp')"),
    ("data.path", "", "data.path='' must not be empty"),
    ("data.cache", "ram", "data.cache=ram must be one of auto, device, memory"),
    ("data.class_names", "cat,,dog", "none empty"),
    ("model.args", "3", "model.args=3 must be a dict such as {'width': 3}"),
    ("model.args", "{width: 3}", "model.args={width: 3} must be a dict"),
    ("model.args.depth", "{1, 2}", "model.args.depth={1, 2} must be a number"),
    ("model.args.depth.x", "1", "model.args.depth.x cannot be set: depth=2 is not a dict"),
    ("model.args.a-b", "1", "'a-b' cannot be the name of an argument"),
    ("model.args.", "1", "'' cannot be the name of an argument"),
    ("optimizer.lerning_rate", "1", "did you mean optimizer.learning_rate?"),
    ("learning_rate", "1", "did you mean optimizer.learning_rate?"),
    ("model.learning_rate", "1", "did you mean optimizer.learning_rate?"),
    (
        "every_steps",
        "1",
        "did you mean eval.every_steps, checkpoint.every_steps or report.every_steps?",
    ),
    ("train.steps.x", "1", "did you mean train.steps?"),
    ("optimizer", "adam", "optimizer is a section, not a key; it has optimizer.name, "),
    ("", "1", "a key without a name; write --config.KEY=VALUE"),
]


@pytest.mark.parametrize(("name", "text", "expected"), MEANT)
def test_means(name: str, text: str, expected: Any) -> None:
    flat = flatten(apply_overrides(BASE, {name: text}))
    key = "model.args" if name.startswith("model.args") else name
    assert flat[key] == expected
    assert type(flat[key]) is type(expected)
    others = {other: value for other, value in flatten(BASE).items() if other != key}
    assert {other: value for other, value in flat.items() if other != key} == others


@pytest.mark.parametrize(("name", "text", "message"), REFUSED)
def test_refuses(name: str, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        apply_overrides(BASE, {name: text})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_several_at_once_are_checked_together() -> None:
    config = apply_overrides(BASE, {"train.epochs": "None", "train.steps": "7"})
    assert (config.train.epochs, config.train.steps) == (None, 7)


def test_the_config_it_starts_from_stays_as_it_is() -> None:
    before = flatten(BASE)
    apply_overrides(BASE, {"model.args.block.norm": "5"})
    assert flatten(BASE) == before
    assert BASE.model.args == {"depth": 2, "block": {"norm": 1}}
