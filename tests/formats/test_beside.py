import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxtrain.config import from_dict
from jaxtrain.errors import UsageError
from jaxtrain.formats import Source, beside

SHAPE = (5, 4, 3)
CONFIG = from_dict({"data": {"eval_crop": 0.875}, "train": {"steps": 7}})
SOURCE = Source(
    apply=lambda variables, images: images,
    variables={},
    image_shape=SHAPE,
    class_names=("cat", "Dackel äö"),
    calibration=lambda: np.zeros((1, *SHAPE), np.uint8),
)


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """The folder of an export whose exporter wrote two files."""
    folder = tmp_path / "export"
    (folder / "weights").mkdir(parents=True)
    (folder / "program").write_bytes(b"a program")
    (folder / "weights" / "first").write_bytes(bytes(range(200)))
    beside.write(
        folder,
        "stablehlo",
        SOURCE,
        step=7,
        config=CONFIG,
        said={"more": [1, 2]},
        snippet="print({1: 2})\n",
        needs="nothing",
    )
    return folder


def test_what_was_written_is_read(export: Path) -> None:
    found = beside.read(export)
    assert found.format == "stablehlo"
    assert found.class_names == ("cat", "Dackel äö")
    assert found.image_shape == SHAPE
    assert found.step == 7
    assert found.config == CONFIG
    assert found.signature["more"] == [1, 2]
    assert found.signature["input"]["shape"] == ["batch", *SHAPE]
    assert sorted(found.signature["sha256"]) == ["program", "weights/first"]
    assert json.loads((export / "classes.json").read_text()) == ["cat", "Dackel äö"]
    readme = (export / "README.md").read_text()
    assert "5 x 4 pixels" in readme
    assert "0.875 of the shorter side is kept" in readme
    assert "```python\nprint({1: 2})\n```\n" in readme
    assert max(map(len, readme.splitlines())) <= 100
    assert set(beside.FILES) >= {path.name for path in export.iterdir() if path.suffix}


def test_a_model_that_takes_one_image_at_a_time_says_so(tmp_path: Path) -> None:
    beside.write(
        tmp_path,
        "tflite",
        SOURCE,
        step=7,
        config=CONFIG,
        said={"any_batch": False},
        snippet="",
        needs="nothing",
    )
    assert beside.read(tmp_path).signature["input"]["shape"] == [1, *SHAPE]
    assert "as uint8, one at a time: `image`, of shape" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize("name", ["program", "weights/first"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content[:-1], "is damaged or was changed: its checksum is not that of"),
        (lambda content: content + b"x", "is damaged or was changed"),
        (lambda content: bytes([content[0] ^ 1]) + content[1:], "is damaged or was changed"),
        (None, "is missing; export it again"),
    ],
)
def test_a_changed_file_is_named(
    export: Path, name: str, change: Callable[[bytes], bytes] | None, said: str
) -> None:
    path = export / name
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UsageError, match=rf"{re.escape(str(path))} {said}"):
        beside.read(export)


def test_other_files_may_lie_there(export: Path) -> None:
    (export / "images.npy").write_bytes(b"a person's")
    (export / "README.md").write_text("changed")
    assert beside.read(export).step == 7


@pytest.mark.parametrize(
    "signature",
    ["{", "[]", "{}", '{"input": 3}', '{"sha256": 3}', '{"sha256": {}, "input": {"shape": [1]}}'],
)
def test_a_damaged_signature_is_named(export: Path, signature: str) -> None:
    (export / "signature.json").write_text(signature)
    with pytest.raises(UsageError, match=r"signature\.json is damaged"):
        beside.read(export)


def test_what_is_no_export_is_said(export: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--exported=.*/nothing does not exist"):
        beside.read(tmp_path / "nothing")
    with pytest.raises(UsageError, match=r"/program is a file; give the folder that it lies in"):
        beside.read(export / "program")
    with pytest.raises(UsageError, match=r"has no signature\.json; did you mean .*/export\?"):
        beside.read(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"class_names": ["cat"]},
        {"class_names": ["cat", "cat"]},
        {"class_names": "ab"},
        {"step": -5},
        {"step": float("inf")},
        {"input": {"shape": ["batch", 0, 4, 3]}},
        {"input": {"shape": ["batch", 5.0, 4, 3]}},
    ],
)
def test_a_signature_that_contradicts_itself_is_named(export: Path, change: dict[str, Any]) -> None:
    signature = json.loads((export / "signature.json").read_text())
    (export / "signature.json").write_text(json.dumps({**signature, **change}))
    with pytest.raises(UsageError, match=r"signature\.json is damaged"):
        beside.read(export)
