"""The TFLite file is the model, for LiteRT alone, also in float16 and int8."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from formats.networks import network
from formats.sources import assert_runs, images, parameter_bytes, reference, source, spoil

from jaxtrain.errors import UsageError
from jaxtrain.formats import Options, Source
from jaxtrain.formats import tflite as exporter

# As a plain interpreter says which kernels it takes.
INFO = "INFO: Created TensorFlow Lite XNNPACK delegate for CPU.\n"


def calibrated(name: str) -> Source:
    """A model of `sources` with as many images to calibrate on as an export has."""
    model = source(name)
    return dataclasses.replace(model, calibration=lambda: images(model.image_shape, 500, seed=7))


@dataclasses.dataclass(frozen=True)
class Exported:
    """An export, and what `save` said of it and printed."""

    model: Source
    quantize: str | None
    folder: Path
    said: Any

    @property
    def size(self) -> int:
        return (self.folder / "model.tflite").stat().st_size


@pytest.fixture(scope="module", params=["mlp", "resnet"])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def exports(name, tmp_path_factory):
    """The exports of a model, by how they are quantized."""
    model = calibrated(name)
    exports = {}
    for quantize in (None, "float16", "int8"):
        folder = tmp_path_factory.mktemp(name)
        said = exporter.save(model, folder, Options(quantize=quantize))
        exports[quantize] = Exported(model, quantize, folder, said)
    return exports


def outputs(export: Exported, image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logits and probabilities."""
    both = [exporter.load(export.folder, output)(image) for output in ("logits", "probabilities")]
    assert all(each.dtype == np.float32 for each in both)
    assert all(each.shape == (len(image), 5) for each in both)
    return both[0], both[1]


@pytest.mark.parametrize(("quantize", "bound"), [(None, 1e-5), ("float16", 2e-3)])
def test_agrees_in_batches_of_any_size(exports, quantize, bound):
    export = exports[quantize]
    image = images(export.model.image_shape, 64)
    expected = reference(export.model, image)
    for n in (1, 3, 64):
        logits, probabilities = outputs(export, image[:n])
        np.testing.assert_allclose(logits, expected[:n], rtol=0, atol=5 * bound)
        np.testing.assert_allclose(probabilities, nn.softmax(expected[:n]), rtol=0, atol=bound)


def test_integers_agree_within_what_they_can_tell(exports):
    export = exports["int8"]
    image = images(export.model.image_shape, 512, seed=3)
    expected = np.asarray(nn.softmax(reference(export.model, image)))
    logits, probabilities = outputs(export, image)
    assert np.abs(probabilities - expected).max() < 0.1
    assert np.abs(probabilities - expected).mean() < 0.01
    same = logits.argmax(1) == expected.argmax(1)
    assert same.mean() > 0.95
    # No class changes where the model is not of two minds.
    second, first = np.sort(expected, 1)[:, -2:].T
    assert same[first - second > 0.1].all()
    # The softmax is not quantized.
    np.testing.assert_allclose(probabilities, nn.softmax(logits), rtol=0, atol=1e-6)


def test_a_batch_does_not_change_a_row(exports):
    for export in exports.values():
        image = images(export.model.image_shape, 9)
        run = exporter.load(export.folder, "logits")
        alone = np.concatenate([run(image[row : row + 1]) for row in range(9)])
        np.testing.assert_allclose(run(image), alone, rtol=0, atol=1e-5)


def test_sizes(exports):
    full, half, quarter = (exports[quantize].size for quantize in (None, "float16", "int8"))
    graph = 20_000  # names, shapes and scales
    parameters = parameter_bytes(exports[None].model)
    assert parameters - 2_000 < full < parameters + graph
    assert parameters / 2 - 2_000 < half < parameters / 2 + graph
    assert parameters / 4 - 2_000 < quarter < parameters / 4 + graph
    assert quarter < half < full


def test_signature(exports):
    for quantize, export in exports.items():
        assert export.said["files"] == {"model": "model.tflite"}
        assert export.said["quantize"] == quantize
        assert export.said["any_batch"] is True
        assert [path.name for path in export.folder.iterdir()] == ["model.tflite"]
        interpreter = Interpreter(str(export.folder / "model.tflite"))
        assert interpreter.get_signature_list() == {
            "serving_default": {"inputs": ["image"], "outputs": ["logits", "probabilities"]}
        }
        (taken,) = interpreter.get_input_details()
        given = interpreter.get_output_details()
        assert (taken["name"], taken["dtype"]) == ("image", np.uint8)
        assert list(taken["shape"]) == [1, 28, 28, 1]
        assert list(taken["shape_signature"]) == [-1, 28, 28, 1]
        assert [each["name"] for each in given] == ["logits", "probabilities"]
        assert all(each["dtype"] == np.float32 for each in given)
        assert all(list(each["shape_signature"]) == [-1, 5] for each in given)


def test_operators_are_built_in_and_fused(exports, name):
    assert (
        exports[None].said["operators"]
        == {
            "mlp": {
                **{"CAST": 1, "MUL": 4, "SUB": 1, "RESHAPE": 1, "LOGISTIC": 2},
                **{"FULLY_CONNECTED": 3, "SOFTMAX": 1},
            },
            # Each batch normalisation and most activations are part of a convolution.
            "resnet": {
                **{"CAST": 1, "MUL": 1, "SUB": 1, "DEPTHWISE_CONV_2D": 1, "CONV_2D": 8, "PAD": 2},
                **{"ADD": 3, "SUM": 1, "FULLY_CONNECTED": 1, "SOFTMAX": 1},
            },
        }[name]
    )
    of_integers = exports["int8"].said["operators"]
    # Only the image and the logits are not integers.
    assert of_integers == exports[None].said["operators"] | {"QUANTIZE": 1, "DEQUANTIZE": 1}


def test_the_snippet_needs_litert_alone(exports, capfd):
    export = exports[None]
    blocked = ["jaxtrain", "jax", "jaxlib", "tensorflow", "flax"]
    assert_runs(exporter, export.folder, export.model, blocked)
    assert capfd.readouterr() == ("", INFO)


def test_nothing_is_printed(tmp_path):
    program = (
        "from pathlib import Path\n"
        "import numpy as np\n"
        "from formats.sources import source\n"
        "from jaxtrain import formats\n"
        "exporter = formats.exporter('tflite')\n"
        "exporter.save(source(), Path('.'), formats.Options(quantize='int8'))\n"
        "exporter.load(Path('.'), 'logits')(np.zeros((2, 28, 28, 1), np.uint8))\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path[:0] = {[str(root), str(root / 'tests')]}\n{program}",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    # Nothing in the file is about the machine that it was made on.
    content = (tmp_path / "model.tflite").read_bytes()
    assert str(root).encode() not in content
    assert b"site-packages" not in content


def test_a_loaded_model_needs_no_tensorflow(exports):
    folder = exports[None].folder
    program = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "import pathlib, numpy as np\n"
        "from jaxtrain import formats\n"
        f"run = formats.exporter('tflite').load(pathlib.Path({str(folder)!r}), 'logits')\n"
        "assert run(np.zeros((2, 28, 28, 1), np.uint8)).shape == (2, 5)\n"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program], cwd=root, check=True)


@pytest.mark.parametrize(
    ("operation", "any_batch"),
    [
        ("max_pool", True),
        ("avg_pool", True),
        ("group_norm", True),
        ("squeeze_and_excite", True),
        ("attention", True),
        ("loop", True),
        ("soft_sign", True),
        ("token", False),
    ],
)
def test_operations_of_other_networks(operation, any_batch, tmp_path):
    model = network(operation)
    said = exporter.save(model, tmp_path, Options())
    assert said["any_batch"] is any_batch
    export = Exported(model, None, tmp_path, said)
    for n in (1, 3, 64):
        image = images(model.image_shape, n)
        logits, _ = outputs(export, image)
        np.testing.assert_allclose(logits, reference(model, image), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("operation", ["max_pool", "avg_pool", "squeeze_and_excite", "exact_gelu"])
def test_operations_of_other_networks_in_integers(operation, tmp_path):
    model = network(operation)
    image = images(model.image_shape, 64)
    # So no value is beyond the range that was seen.
    model = dataclasses.replace(model, calibration=lambda: image)
    said = exporter.save(model, tmp_path, Options(quantize="int8"))
    expected = reference(model, image)
    logits, _ = outputs(Exported(model, "int8", tmp_path, said), image)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=0.03 * np.abs(expected).max())


def test_a_division_that_could_end_the_process_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"quantize=int8: .* divides .*float16"):
        exporter.save(network("soft_sign"), tmp_path, Options(quantize="int8"))
    assert not list(tmp_path.iterdir())


def test_an_operation_that_has_no_translation_is_named(tmp_path, capfd):
    with pytest.raises(UsageError, match=r"format tflite: .*'vhlo\.fft\w*'.*stablehlo") as info:
        exporter.save(network("fft"), tmp_path, Options())
    assert "\n" not in str(info.value)
    assert capfd.readouterr() == ("", "")
    # What the converter wrote on its own is in the traceback, if one is asked for.
    assert any("loc(" in note for note in info.value.__cause__.__notes__)


def test_a_model_that_no_file_can_hold_is_refused(tmp_path):
    large = np.broadcast_to(np.float32(0), (2**29, 1))
    model = dataclasses.replace(source("mlp"), variables={"large": large})
    with pytest.raises(UsageError, match=r"format tflite: .* take 2\.15 GB, but .* 2 GB at most"):
        exporter.save(model, tmp_path, Options())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "text", "other"])
def test_a_file_that_cannot_be_read_is_named(damage, exports, tmp_path, capfd):
    path = tmp_path / "model.tflite"
    path.write_bytes((exports[None].folder / "model.tflite").read_bytes())
    spoil(path, damage)
    with pytest.raises(UsageError, match=r"model\.tflite is .*export the model again$") as info:
        exporter.load(tmp_path, "logits")
    assert "\n" not in str(info.value)
    assert capfd.readouterr() == ("", "")
