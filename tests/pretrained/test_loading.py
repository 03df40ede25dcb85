"""From the bytes of a file to logits."""

import json
import zlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import pytorch_resnets
import safetensors.numpy
import torch_files

from jaxtrain import pretrained, state
from jaxtrain.errors import UsageError

# What torchvision and Hugging Face answer in float64, with weights made from the tensors' names,
# for the images of RandomState(0).
GOLDEN: dict[str, Any] = json.loads(Path(__file__).with_name("golden_logits.json").read_text())

NARROW = {"width": 0.125}


def shapes_of(golden: str) -> pytorch_resnets.Shapes:
    family, model = golden.split("/")
    shapes: pytorch_resnets.Shapes = getattr(pytorch_resnets, family)(model)
    return shapes


def written(path: Path, tensors: dict[str, Any]) -> Path:
    if path.suffix == ".safetensors":
        path.write_bytes(safetensors.numpy.save(tensors))
    else:
        path.write_bytes(torch_files.save(torch_files.state_dict(tensors)))
    return path


@pytest.mark.parametrize("golden", GOLDEN)
def test_the_names_are_those_of_the_real_models(golden: str) -> None:
    shapes = shapes_of(golden)
    text = "\n".join(f"{name} {list(shape)}" for name, shape in sorted(shapes.items()))
    assert len(shapes) == GOLDEN[golden]["tensors"]
    assert zlib.crc32(text.encode()) == GOLDEN[golden]["names_crc32"]


@pytest.mark.parametrize("golden", GOLDEN)
def test_a_file_gives_the_logits_of_the_real_model(golden: str, tmp_path: Path) -> None:
    suffix = ".pth" if golden == "torchvision/resnet18" else ".safetensors"
    path = tmp_path / f"weights{suffix}"
    written(path, pytorch_resnets.weights(shapes_of(golden)))
    model, abstract = pytorch_resnets.ours(golden.split("/")[1])

    imported = pretrained.load(path, abstract)

    assert imported.notes == ()
    images = np.random.RandomState(0).standard_normal((2, 64, 64, 3)).astype(np.float32)
    logits = pytorch_resnets.logits(model, imported.variables, images)
    np.testing.assert_allclose(logits, GOLDEN[golden]["logits"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_another_head_starts_as_it_is_made(suffix: str, tmp_path: Path) -> None:
    shapes = pytorch_resnets.torchvision("resnet18", classes=7, **NARROW)
    path = written(tmp_path / f"weights{suffix}", pytorch_resnets.weights(shapes))
    _, abstract = pytorch_resnets.ours("resnet18", **NARROW)
    initial = jax.tree.map(lambda leaf: np.full(leaf.shape, 9, leaf.dtype), abstract)

    imported = pretrained.load(path, abstract)
    variables = state.overlay(initial, imported.variables)

    assert imported.notes == ("the file's head for 7 classes is replaced by a new one for 10",)
    assert jax.tree.structure(variables) == jax.tree.structure(abstract)
    assert all((leaf == 9).all() for leaf in jax.tree.leaves(variables["params"]["head"]))
    del variables["params"]["head"]
    assert not any((leaf == 9).any() for leaf in jax.tree.leaves(variables))


def test_notes_of_the_file_come_before_those_of_the_model(tmp_path: Path) -> None:
    shapes = pytorch_resnets.torchvision("resnet18", classes=7, **NARROW)
    tensors = torch_files.state_dict(pytorch_resnets.weights(shapes))
    path = tmp_path / "checkpoint.pth"
    path.write_bytes(torch_files.save({"epoch": 3, "model": tensors}))

    imported = pretrained.load(path, pytorch_resnets.ours("resnet18", **NARROW)[1])

    assert [note.partition(",")[0] for note in imported.notes] == [
        "of the file only model is read",
        "the file's head for 7 classes is replaced by a new one for 10",
    ]


def test_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    path.write_bytes(b"hello")
    with pytest.raises(UsageError) as raised:
        pretrained.load(path, pytorch_resnets.ours("resnet18", **NARROW)[1])
    assert str(raised.value) == (
        f"model.init_from={path}: is neither a .safetensors file nor one that torch.save wrote "
        "(or its beginning is damaged); name a file of weights"
    )


@pytest.mark.parametrize(
    ("name", "reason"), [("missing.pth", "No such file or directory"), (".", "Is a directory")]
)
def test_a_file_that_cannot_be_read(name: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        pretrained.load(tmp_path / name, {})
    assert str(raised.value) == (
        f"model.init_from={tmp_path / name} cannot be read: {reason}; name a .safetensors or .pth "
        "file"
    )
