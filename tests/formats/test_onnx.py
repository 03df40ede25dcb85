"""The ONNX file is the model, for onnxruntime alone, and says nothing while it runs."""

import dataclasses
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import pytest
from formats.networks import network
from formats.sources import assert_runs, images, parameter_bytes, reference, source, spoil

from jaxtrain.errors import UsageError
from jaxtrain.formats import Options, Source
from jaxtrain.formats import onnx as exporter


def assert_agrees(model: Source, folder: Path) -> None:
    """Logits and probabilities at batch 1, 3 and 64."""
    logits, probabilities = (exporter.load(folder, name) for name in ("logits", "probabilities"))
    for n in (1, 3, 64):
        image = images(model.image_shape, n)
        expected = reference(model, image)
        np.testing.assert_allclose(logits(image), expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(probabilities(image), nn.softmax(expected), rtol=0, atol=1e-5)
        assert probabilities(image).dtype == logits(image).dtype == np.float32


@pytest.mark.parametrize("name", ["mlp", "resnet"])
def test_agrees_and_prints_nothing(name, tmp_path, capfd, caplog):
    model = source(name)
    said = exporter.save(model, tmp_path, Options())
    assert_agrees(model, tmp_path)
    # What a session logs unless it is told not to.
    plain = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    plain.run(None, {"image": images(model.image_shape, 2)})
    assert capfd.readouterr() == ("", "")
    assert not caplog.records

    assert said == {"files": {"model": "model.onnx"}, "opset": 18, "ir_version": 8}
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    size = (tmp_path / "model.onnx").stat().st_size
    assert parameter_bytes(model) < size < parameter_bytes(model) + 15_000


def test_graph(tmp_path):
    said = exporter.save(source("resnet"), tmp_path, Options())
    model = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [(each.domain, each.version) for each in model.opset_import] == [("", said["opset"])]
    assert model.ir_version == said["ir_version"]
    assert not model.graph.value_info
    # Nothing of it is about the machine that it was made on.
    assert str(Path.cwd()).encode() not in model.SerializeToString()
    assert b"/jaxtrain/" not in model.SerializeToString()

    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (taken,) = session.get_inputs()
    assert (taken.name, taken.type, taken.shape) == ("image", "tensor(uint8)", ["batch", 28, 28, 1])
    given = [(each.name, each.type, each.shape) for each in session.get_outputs()]
    assert given == [
        ("logits", "tensor(float)", ["batch", 5]),
        ("probabilities", "tensor(float)", ["batch", 5]),
    ]


def test_what_variables_alone_decide_is_computed_before(tmp_path):
    exporter.save(source("resnet"), tmp_path, Options())
    graph = onnx.load(tmp_path / "model.onnx").graph
    kinds = {node.op_type for node in graph.node}
    assert kinds == {
        *("Cast", "Div", "Sub", "Mul", "Add", "Transpose", "Conv", "Max"),
        *("ReduceSum", "Gemm", "Softmax"),
    }
    # A normalisation layer is a subtraction, a product and a sum; the first is of the images.
    assert sum(node.op_type == "Sub" for node in graph.node) == 1 + 9


@pytest.mark.parametrize(
    "operation",
    [
        "max_pool",
        "avg_pool",
        "pool_in_one_dimension",
        "group_norm",
        "squeeze_and_excite",
        "attention",
        "loop",
        "batch_dimension_last",
        "token",
    ],
)
def test_operations_of_other_networks(operation, tmp_path):
    model = network(operation)
    exporter.save(model, tmp_path, Options())
    assert_agrees(model, tmp_path)
    # Shapes are not computed while it runs.
    kinds = {node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node}
    assert ("Shape" in kinds) == (operation in ("batch_dimension_last", "token"))


def test_an_operation_that_has_no_translation_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"format onnx: .* cannot convert .*DFT.*stablehlo"):
        exporter.save(network("fft"), tmp_path, Options())


def test_a_model_of_a_fixed_batch_is_refused(tmp_path):
    model = source("mlp")

    def one_by_one(variables: Any, image: jax.Array) -> Any:
        rows = [model.apply(variables, image[row : row + 1]) for row in range(image.shape[0])]
        return jnp.concatenate(rows)

    with pytest.raises(UsageError, match="batches of any size"):
        exporter.save(dataclasses.replace(model, apply=one_by_one), tmp_path, Options())


def test_a_model_that_onnxruntime_cannot_run_is_refused(tmp_path, capfd):
    model = source("mlp")

    def of_four(variables: Any, image: jax.Array) -> Any:
        return model.apply(variables, image.reshape(4, 28, 28, 1))

    with pytest.raises(UsageError, match=r"cannot convert .*Reshape"):
        exporter.save(dataclasses.replace(model, apply=of_four), tmp_path, Options())
    assert capfd.readouterr() == ("", "")


def test_a_model_that_no_file_of_onnx_can_hold_is_refused(tmp_path):
    large = np.broadcast_to(np.float32(0), (2**29, 1))
    model = dataclasses.replace(source("mlp"), variables={"large": large})
    with pytest.raises(UsageError, match=r"format onnx: .* take 2\.15 GB, but .* 2 GB at most"):
        exporter.save(model, tmp_path, Options())
    assert not list(tmp_path.iterdir())


def test_the_snippet_needs_onnxruntime_alone(tmp_path, capfd):
    model = source("resnet")
    exporter.save(model, tmp_path, Options())
    assert_runs(exporter, tmp_path, model, ["jaxtrain", "jax", "jax2onnx", "onnx", "flax"])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "text", "other"])
def test_a_file_that_cannot_be_read_is_named(damage, tmp_path):
    path = tmp_path / "model.onnx"
    exporter.save(source("mlp"), tmp_path, Options())
    spoil(path, damage)
    with pytest.raises(
        UsageError, match=r"model\.onnx (is|takes) .*export the model again$"
    ) as info:
        exporter.load(tmp_path, "logits")
    assert "\n" not in str(info.value)


def test_jax_is_left_as_it_was(tmp_path):
    cumsum = jnp.cumsum
    exporter.save(source("mlp", (6, 5, 3)), tmp_path, Options())
    assert jnp.cumsum is cumsum
