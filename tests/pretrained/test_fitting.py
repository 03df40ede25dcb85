"""Tensors of PyTorch's ResNets to variables."""

import re
from typing import Any

import jax
import numpy as np
import pytest
import pytorch_resnets
from numpy.typing import NDArray

from jaxtrain.errors import UsageError
from jaxtrain.pretrained.fitting import fit
from jaxtrain.state import overlay

NARROW = {"width": 0.125}
Tensors = dict[str, NDArray[Any]]


def tensors_of(model: str = "resnet18", family: str = "torchvision", **options: Any) -> Tensors:
    shapes = getattr(pytorch_resnets, family)(model, **(NARROW | options))
    return pytorch_resnets.weights(shapes)


def abstract(name: str = "resnet18", **options: Any) -> dict[str, Any]:
    return pytorch_resnets.ours(name, **(NARROW | options))[1]


def refusal(tensors: Tensors, wanted: dict[str, Any]) -> str:
    with pytest.raises(UsageError) as raised:
        fit(tensors, wanted)
    return str(raised.value)


@pytest.mark.parametrize("family", ["torchvision", "huggingface"])
@pytest.mark.parametrize("model", ["resnet18", "resnet34", "resnet50", "resnet101", "resnet200"])
def test_every_variable_gets_its_tensor(model: str, family: str) -> None:
    narrow = {"width": 1 / 32}
    wanted = abstract(model, **narrow)
    imported = fit(tensors_of(model, family, **narrow), wanted)
    assert jax.tree.structure(imported.variables) == jax.tree.structure(wanted)
    for leaf, expected in zip(
        jax.tree.leaves(imported.variables), jax.tree.leaves(wanted), strict=True
    ):
        assert (leaf.shape, leaf.dtype) == (expected.shape, np.float32)
        assert leaf.flags.c_contiguous


def test_layouts_are_turned_round() -> None:
    tensors = tensors_of("resnet50")
    variables = fit(tensors, abstract("resnet50")).variables
    block = variables["params"]["stage2_block0"]
    statistics = variables["collections"]["batch_stats"]["stage2_block0"]
    kernel = tensors["layer2.0.conv2.weight"]
    assert block["conv2"]["kernel"][2, 1, 3, 5] == kernel[5, 3, 2, 1]
    assert variables["params"]["head"]["kernel"][6, 4] == tensors["fc.weight"][4, 6]
    shortcut = tensors["layer2.0.downsample.0.weight"]
    assert block["shortcut_conv"]["kernel"][0, 0, 2, 7] == shortcut[7, 2, 0, 0]
    for here, there in (("norm3", "bn3"), ("shortcut_norm", "downsample.1")):
        for values, name in (
            (block[here]["scale"], "weight"),
            (block[here]["bias"], "bias"),
            (statistics[here]["mean"], "running_mean"),
            (statistics[here]["var"], "running_var"),
        ):
            np.testing.assert_array_equal(values, tensors[f"layer2.0.{there}.{name}"])


@pytest.mark.parametrize("dtype", ["float16", "float64", ">f4"])
def test_other_floats_become_float32(dtype: str) -> None:
    tensors = tensors_of()
    others = {name: tensor.astype(dtype) for name, tensor in tensors.items()}
    imported = fit(others, abstract()).variables
    head = imported["params"]["head"]["kernel"]
    assert head.dtype == np.float32
    assert head.dtype.isnative
    np.testing.assert_array_equal(head, others["fc.weight"].T.astype(np.float32))


def test_what_it_gives_is_not_the_files_memory() -> None:
    tensors = tensors_of()
    variables = fit(tensors, abstract()).variables
    tensors["bn1.weight"][:] = 5
    assert not (variables["params"]["stem_norm"]["scale"] == 5).any()


def test_group_normalisation() -> None:
    tensors = {name: tensor for name, tensor in tensors_of().items() if "running" not in name}
    wanted = abstract(norm="group", groups=8)
    variables = fit(tensors, wanted).variables
    assert "collections" not in variables
    assert jax.tree.structure(variables["params"]) == jax.tree.structure(wanted["params"])


def test_a_file_without_counts_of_batches() -> None:
    tensors = {name: value for name, value in tensors_of().items() if "num_batches" not in name}
    assert fit(tensors, abstract()).notes == ()


@pytest.mark.parametrize(
    ("family", "head"), [("torchvision", "fc"), ("huggingface", "classifier.1")]
)
def test_a_file_without_a_head(family: str, head: str) -> None:
    tensors = tensors_of(family=family)
    for leaf in ("weight", "bias"):
        del tensors[f"{head}.{leaf}"]
    imported = fit(tensors, abstract())
    assert imported.notes == ("the file has no head; the one for 10 classes is new",)
    assert set(abstract()["params"]) - set(imported.variables["params"]) == {"head"}


def test_hugging_faces_model_without_a_classifier_has_shorter_names() -> None:
    tensors = tensors_of(family="huggingface")
    inner = {
        name.removeprefix("resnet."): value
        for name, value in tensors.items()
        if name.startswith("resnet.")
    }
    expected = fit(tensors, abstract()).variables
    del expected["params"]["head"]
    jax.tree.map(np.testing.assert_array_equal, fit(inner, abstract()).variables, expected)


def test_a_head_of_other_features_is_not_replaced() -> None:
    tensors = tensors_of(classes=7)
    tensors["fc.weight"] = tensors["fc.weight"][:, :-1]
    assert "params/head/kernel is (63, 7) in the file, but (64, 10) in the model" in refusal(
        tensors, abstract()
    )


def test_half_a_head_is_not_replaced() -> None:
    tensors = tensors_of(classes=7)
    del tensors["fc.bias"]
    assert "does not fit the model: variables without a tensor: params/head/bias; " in refusal(
        tensors, abstract()
    )


def test_grey_images_see_what_they_give_in_three_channels() -> None:
    tensors = tensors_of()
    model, rgb = pytorch_resnets.ours("resnet18", **NARROW)
    grey_model, wanted = pytorch_resnets.ours("resnet18", channels=1, **NARROW)
    imported = fit(tensors, wanted)
    assert imported.notes == (
        "the first kernels of red, green and blue are summed for grey images",
    )
    grey = np.random.default_rng(0).standard_normal((2, 32, 32, 1)).astype(np.float32)
    np.testing.assert_allclose(
        pytorch_resnets.logits(grey_model, imported.variables, grey),
        pytorch_resnets.logits(model, fit(tensors, rgb).variables, grey.repeat(3, axis=3)),
        rtol=0,
        atol=1e-6,
    )


def test_weights_of_grey_images_fit_a_model_of_such() -> None:
    imported = fit(tensors_of(channels=1), abstract(channels=1))
    assert imported.notes == ()
    assert imported.variables["params"]["stem_conv"]["kernel"].shape == (7, 7, 1, 8)


def test_three_channels_are_summed_for_grey_images_alone() -> None:
    tensors = tensors_of(channels=3)
    assert "is (7, 7, 3, 8) in the file, but (7, 7, 2, 8) in the model" in refusal(
        tensors, abstract(channels=2)
    )


def test_a_cifar_stem_fits_its_like() -> None:
    wanted = abstract("resnet18", stem="cifar")
    stem = fit(tensors_of(side=3), wanted).variables["params"]["stem_conv"]["kernel"]
    assert stem.shape == (3, 3, 3, 8)


MISFITS = [
    (
        {"model": "resnet50"},
        {"name": "resnet18"},
        "is a resnet50 (bottleneck blocks: 3, 4, 6, 3), but the model is a resnet18 (basic "
        "blocks: 2, 2, 2, 2); set model.name=resnet50, or choose other weights",
    ),
    (
        {},
        {"name": "resnet20"},
        "is a resnet18 (basic blocks: 2, 2, 2, 2), but the model is a resnet20 (basic blocks: 3, "
        "3, 3); set model.name=resnet18, or choose other weights",
    ),
    (
        {},
        {"stem": "cifar"},
        "does not fit the model: params/stem_conv/kernel is (7, 7, 3, 8) in the file, but "
        "(3, 3, 3, 8) in the model; set model.resnet.stem=imagenet",
    ),
    (
        {"side": 3},
        {},
        "does not fit the model: params/stem_conv/kernel is (3, 3, 3, 8) in the file, but "
        "(7, 7, 3, 8) in the model; set model.resnet.stem=cifar",
    ),
    (
        {"width": 0.25},
        {},
        "does not fit the model: params/stem_conv/kernel is (7, 7, 3, 16) in the file, but "
        "(7, 7, 3, 8) in the model; set model.resnet.width so that they are the same",
    ),
    (
        {},
        {"channels": 4},
        "does not fit the model: params/stem_conv/kernel is (7, 7, 3, 8) in the file, but "
        "(7, 7, 4, 8) in the model; set data.channels=3",
    ),
    (
        {"channels": 1},
        {},
        "does not fit the model: params/stem_conv/kernel is (7, 7, 1, 8) in the file, but "
        "(7, 7, 3, 8) in the model; set data.channels=1",
    ),
    (
        {},
        {"norm": "group", "groups": 8},
        "is a network with batch normalisation, but the model is a network with group "
        "normalisation; set model.resnet.norm=batch, or choose other weights",
    ),
]


@pytest.mark.parametrize(("theirs", "ours", "words"), MISFITS)
def test_other_networks_are_refused(
    theirs: dict[str, Any], ours: dict[str, Any], words: str
) -> None:
    assert refusal(tensors_of(**theirs), abstract(**ours)) == words


def test_other_models_are_refused() -> None:
    mlp = {"params": {"head": {"bias": np.zeros(10), "kernel": np.zeros((4, 10))}}}
    assert refusal(tensors_of(), mlp) == "holds the weights of a ResNet; set model.name to one"


def test_a_wide_network_is_refused_by_its_first_kernel() -> None:
    tensors = tensors_of("resnet50")
    for name, tensor in tensors.items():
        if re.fullmatch(r"layer1\.0\.(bn1\..*|conv1\.weight)", name) and tensor.ndim:
            tensors[name] = np.concatenate([tensor, tensor])
    assert refusal(tensors, abstract("resnet50")) == (
        "does not fit the model: params/stage1_block0/conv1/kernel is (1, 1, 8, 16) in the file, "
        "but (1, 1, 8, 8) in the model; choose weights of a plain ResNet"
    )


def test_leftovers_and_gaps_are_listed() -> None:
    tensors = tensors_of()
    tensors["layer1.0.se.weight"] = tensors["layer1.1.conv9.weight"] = np.zeros(3)
    tensors["aux.fc.weight"] = np.zeros((3, 3))
    del tensors["bn1.running_var"], tensors["layer4.1.conv2.weight"]
    assert refusal(tensors, abstract()) == (
        "does not fit the model: tensors without a place in it: layer1.0.se.weight, "
        "aux.fc.weight, layer1.1.conv9.weight; variables without a tensor: "
        "collections/batch_stats/stem_norm/var, params/stage4_block1/conv2/kernel; choose weights "
        "of a plain ResNet of torchvision, timm or Hugging Face"
    )


@pytest.mark.parametrize(
    "name",
    [
        "conv1.bias",
        "bn1.running_std",
        "fc.num_batches_tracked",
        "layer1.00.conv1.weight",
        "layer01.0.conv1.weight",
        "layer1.\u0660.conv1.weight",
        "layer1.0.conv1.weight ",
        "layer1.0.conv1x.weight",
        "layer1.0.conv1.1.weight",
        "layer1.0.downsample.2.weight",
        "layer1.0.downsample0.weight",
        "resnet.encoder.stages.0.layers.0.layer.0.convolution.weight",
        "weight",
        "",
    ],
)
def test_a_name_that_is_almost_right_has_no_place(name: str) -> None:
    tensors = tensors_of() | {name: np.zeros(3, np.float32)}
    assert (
        f"does not fit the model: tensors without a place in it: {ascii(name)[1:-1]}; "
        in refusal(tensors, abstract())
    )


def test_hugging_faces_names_keep_their_prefix() -> None:
    name = "branch.embedder.embedder.convolution.weight"
    tensors = tensors_of(family="huggingface") | {name: np.zeros(3, np.float32)}
    assert f"tensors without a place in it: {name}; " in refusal(tensors, abstract())


def test_long_lists_are_cut_and_stay_on_one_line() -> None:
    tensors = tensors_of() | {f"{i}\n\ud800" + "x" * 1000: np.zeros(3) for i in range(9)}
    words = refusal(tensors, abstract())
    assert r"tensors without a place in it: 0\n\ud800xxx" in words
    assert "and 4 others; choose" in words
    assert words.isascii()
    assert words.isprintable()
    assert len(words) < 1000


def test_names_of_no_resnet() -> None:
    assert refusal({"stem.conv.weight": np.zeros(3)}, abstract()) == (
        "names its tensors stem.conv.weight, which no ResNet of torchvision, timm or Hugging Face "
        "does; only their ResNets are read"
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_numbers_that_are_not_finite(value: float) -> None:
    tensors = tensors_of()
    tensors["layer3.0.bn1.bias"] = tensors["layer3.0.bn1.bias"].astype(np.float64)
    tensors["layer3.0.bn1.bias"][3] = value
    assert refusal(tensors, abstract()) == (
        "tensor layer3.0.bn1.bias holds a NaN or an infinity; choose other weights"
    )


@pytest.mark.parametrize("dtype", ["int8", "bool", "complex64"])
def test_weights_that_are_no_floats(dtype: str) -> None:
    tensors = tensors_of()
    tensors["fc.weight"] = np.zeros(tensors["fc.weight"].shape, dtype)
    assert refusal(tensors, abstract()) == (f"tensor fc.weight is {dtype}; weights must be floats")


def test_a_huge_view_of_little_memory_is_refused_before_it_is_copied() -> None:
    tensors = tensors_of()
    tensors["layer1.0.conv1.weight"] = np.broadcast_to(np.float32(0), (2**20, 2**20, 3, 3))
    assert "is (3, 3, 1048576, 1048576) in the file" in refusal(tensors, abstract())


def test_overlay_keeps_what_is_not_imported() -> None:
    initial = {"params": {"a": {"x": 1, "y": 2}, "b": {"x": 3}}, "collections": {}}
    assert overlay(initial, {"params": {"a": {"y": 5}}, "other": {"z": 7}}) == {
        "params": {"a": {"x": 1, "y": 5}, "b": {"x": 3}},
        "collections": {},
    }
    assert initial["params"]["a"]["y"] == 2
