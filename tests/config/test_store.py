"""A Config as plain data: JSON and back, identity, difference."""

import dataclasses
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrain.config import (
    Config,
    apply_overrides,
    difference,
    flatten,
    from_dict,
    identity,
    key_docs,
    load_json,
    to_dict,
    to_json,
)
from jaxtrain.config.table import Key
from jaxtrain.config.values import build, check_value
from jaxtrain.errors import UsageError

BASE = from_dict({"train": {"epochs": 10}})

# Names the default workdir. It may never change: old runs would not be found by their command.
IDENTITY_OF_BASE = "bb1ae101"

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
SCALARS: dict[type, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63) + 1, 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    str: TEXT,
}
ARGUMENTS = st.dictionaries(
    st.sampled_from(["width", "depth", "größe"]),
    st.recursive(
        st.one_of(st.none(), *SCALARS.values()),
        lambda inner: st.one_of(
            st.lists(inner).map(tuple), st.dictionaries(st.sampled_from(["a", "b"]), inner)
        ),
        max_leaves=8,
    ),
)


CHOICES: dict[str, list[str | None]] = {
    "data.on_bad_file": ["error", "skip"],
    "data.cache": ["auto", "device", "memory"],
    "model.freeze": [None, "backbone"],
    "model.dtype": ["float32", "bfloat16", "float16"],
    "model.resnet.stem": [None, "imagenet", "cifar"],
    "model.resnet.norm": ["batch", "group"],
    "eval.weights": [None, "ema", "raw"],
    "checkpoint.best_metric": [None, "accuracy", "loss"],
    "parallel.mode": ["jit", "pmap"],
}

SIDES = st.lists(st.integers(1, 2**14), min_size=1, max_size=2).map(tuple)
SHARES = st.floats(0.01, 0.99)

# Keys that refuse almost all that there is of their kind.
NARROW: dict[str, st.SearchStrategy[Any]] = {
    "data.image_size": SIDES,
    "data.eval_image_size": SIDES,
    "data.val_share": SHARES,
    "data.eval_crop": SHARES,
    "data.background": st.lists(st.integers(0, 255), min_size=3, max_size=3).map(tuple),
    "data.channels": st.sampled_from([1, 3, 4]),
    "data.mean": st.lists(st.floats(-9, 9), min_size=1, max_size=4).map(tuple),
    "data.std": st.lists(st.floats(0.1, 9), min_size=1, max_size=4).map(tuple),
    "data.threads": st.integers(1, 16),
    "data.ahead": st.integers(1, 16),
    "optimizer.b1": SHARES,
    "optimizer.b2": SHARES,
    "optimizer.eps": SHARES,
    "optimizer.learning_rate": st.floats(1e-6, 1e6),
    "train.ema_decay": SHARES,
    "train.steps_per_call": st.integers(1, 100),
    "parallel.peer_timeout_seconds": st.floats(5, 600),
}

# Keys that contradict another key that is drawn.
ALONE = {
    "train.steps",
    "schedule.warmup_steps",
    "eval.every_steps",
    "checkpoint.every_steps",
    "data.num_classes",
}


def values_of(key: Key) -> st.SearchStrategy[Any]:
    """Everything that the key accepts."""
    if key.kind is dict:
        return ARGUMENTS
    if key.name in CHOICES:
        return st.sampled_from(CHOICES[key.name])
    if key.name == "data.class_names":
        return st.none() | st.lists(TEXT.filter(bool), min_size=1, unique=True).map(tuple)
    if key.name == "data.synthetic.image_shape":
        return st.tuples(*[st.integers(1, 2**14)] * 3)
    if key.name in NARROW:
        return NARROW[key.name] | st.none() if key.optional else NARROW[key.name]
    if key.kind is tuple:
        assert key.element is not None
        elements = SCALARS[key.element]
        if key.element is int:
            elements |= st.integers(1, 255)  # which most keys take
        values: st.SearchStrategy[Any] = st.lists(elements, max_size=4).map(tuple)
    else:
        values = SCALARS[key.kind]
        if key.kind in (int, float):
            number = values
            values = st.one_of(number, number.map(abs), st.sampled_from([key.kind(0.0)]))
            values |= st.integers(1, 4) if key.kind is int else st.floats(0, 1, exclude_max=True)
    values = values.filter(lambda value: key.check is None or key.check(value) is None)
    return values | st.none() if key.optional else values


CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        key.name: values_of(key).map(functools.partial(check_value, key))
        for key in key_docs().values()
        if key.name not in ALONE
    },
).map(lambda flat: build({**flat, "train.epochs": flat.get("train.epochs") or 1.0}))


@settings(deadline=None)
@given(CONFIGS)
def test_config_json_reloads_to_an_equal_config(config: Config) -> None:
    again = from_dict(json.loads(to_json(config)))
    assert again == config
    assert repr(flatten(again)) == repr(flatten(config))  # 1 and 1.0 and True are equal, not alike
    assert identity(again) == identity(config)
    assert difference(config, again, ignore_free=False) == []


def test_to_json_and_load_json(tmp_path: Path) -> None:
    config = apply_overrides(BASE, {"model.args": "{'sizes': (1, 2)}", "data.path": "/däta"})
    path = tmp_path / "config.json"
    path.write_text(to_json(config), encoding="utf-8")
    assert load_json(path) == config
    assert json.loads(path.read_text()) == to_dict(config)
    assert to_dict(config)["model"]["args"] == {"sizes": [1, 2]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "is damaged: line 1 is not JSON"),
        (b'{"train": {"epochs": 3}', "is damaged: line 1 is not JSON"),
        (b"\xff\xfe", "is damaged: it is not a JSON text"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "is damaged: it is not a JSON text"),
        (b"[" * 100_000, "is damaged: it is not a JSON text"),
        (b"[1, 2]", "is damaged: it must hold a JSON object, not [1, 2]"),
        (b'{"train": {"epohs": 3}}', ": unknown key train.epohs; did you mean train.epochs?"),
        (b'{"train": {"epochs": NaN}}', ": train.epochs=nan must be finite"),
        (b"{}", ": neither train.epochs nor train.steps is set"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        load_json(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_is_no_config_json(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        load_json(tmp_path)


def test_flatten_has_every_key_once() -> None:
    flat = flatten(BASE)
    assert list(flat) == list(key_docs())
    assert flat["train.epochs"] == 10.0
    assert flat["model.args"] == {}


def test_identity_is_the_same_everywhere() -> None:
    assert identity(BASE) == IDENTITY_OF_BASE
    code = (
        "from jaxtrain.config import from_dict, identity;"
        "print(identity(from_dict({'train': {'epochs': 10}})))"
    )
    for seed in ("0", "1"):
        out = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert out.stdout == f"{IDENTITY_OF_BASE}\n"


OTHER = {
    int: lambda value: (value or 0) + 1,
    float: lambda value: (value or 0.0) + 0.125,
    bool: lambda value: not value,
    str: lambda value: f"{value}x",
    tuple: lambda value: (*(value or ()), 7),
    dict: lambda value: {**value, "width": 1},
}


@pytest.mark.parametrize("key", key_docs().values(), ids=lambda key: key.name)
def test_identity_and_difference_of_each_key(key: Key) -> None:
    old = flatten(BASE)[key.name]
    *path, leaf = key.name.split(".")
    holder: Any = BASE
    for part in path:
        holder = getattr(holder, part)
    section: Any = dataclasses.replace(holder, **{leaf: OTHER[key.kind](old)})
    for depth in range(len(path), 0, -1):
        holder = BASE
        for part in path[: depth - 1]:
            holder = getattr(holder, part)
        section = dataclasses.replace(holder, **{path[depth - 1]: section})
    changed = [(key.name, old, OTHER[key.kind](old))]
    assert difference(BASE, section, ignore_free=False) == changed
    assert difference(BASE, section) == ([] if key.free else changed)
    assert (identity(section) == identity(BASE)) == key.free
