import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from formats.sources import (
    CLASS_NAMES,
    assert_runs,
    images,
    odd_dtypes,
    of_one_batch_size,
    parameter_bytes,
    reference,
    source,
    spoil,
)

import jaxtrain
from jaxtrain.errors import UsageError
from jaxtrain.formats import Options, savedmodel
from jaxtrain.formats.tensorflow import tf

MODELS = {"mlp": source("mlp"), "resnet": source("resnet", (12, 10, 3))}
FILES = {
    "fingerprint.pb",
    "saved_model.pb",
    "variables/variables.data-00000-of-00001",
    "variables/variables.index",
}


@pytest.fixture(scope="module", params=MODELS)
def exported(request, tmp_path_factory):
    """A model, its export, and what the export says of itself."""
    folder = tmp_path_factory.mktemp(request.param)
    return (
        MODELS[request.param],
        folder,
        savedmodel.save(MODELS[request.param], folder, Options()),
    )


def test_gives_the_models_outputs_in_batches_of_any_size(exported):
    model, folder, _ = exported
    image = images(model.image_shape, 64)
    expected = reference(model, image)
    outputs = {"logits": expected, "probabilities": np.asarray(jax.nn.softmax(expected))}
    for output, values in outputs.items():
        run = savedmodel.load(folder, output)
        for n in (1, 3, 64):
            found = run(image[:n])
            assert found.shape == (n, 5)
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, values[:n], atol=1e-5)


def test_signatures_have_names_dtypes_and_a_free_batch_size(exported):
    model, folder, said = exported
    signatures = tf.saved_model.load(str(folder)).signatures
    outputs = {
        "serving_default": {
            "probabilities": ([None, 5], tf.float32),
            "class_id": ([None], tf.int64),
            "class_name": ([None], tf.string),
        },
        "logits": {"logits": ([None, 5], tf.float32)},
    }
    assert set(signatures) == set(outputs)
    for name, signature in signatures.items():
        (inputs,) = signature.structured_input_signature[1].items()
        assert inputs == ("image", tf.TensorSpec((None, *model.image_shape), tf.uint8, "image"))
        specs = signature.structured_outputs.items()
        found = {key: (spec.shape.as_list(), spec.dtype) for key, spec in specs}
        assert found == outputs[name]
    assert json.loads(json.dumps(said)) == {
        "signatures": {name: sorted(of) for name, of in outputs.items()},
        "platforms": ["cpu", "cuda", "rocm", "tpu"],
    }


def test_classes_are_those_of_the_largest_probabilities(exported):
    model, folder, _ = exported
    image = images(model.image_shape, 64)
    loaded = tf.saved_model.load(str(folder))
    outputs = loaded.signatures["serving_default"](image=tf.constant(image))
    ids = reference(model, image).argmax(1)
    assert len(set(ids)) > 1
    np.testing.assert_array_equal(outputs["class_id"].numpy(), ids)
    names = [name.decode() for name in outputs["class_name"].numpy()]
    assert names == [CLASS_NAMES[k] for k in ids]


def test_weights_are_variables_with_names_and_are_stored_once(exported):
    model, folder, _ = exported
    sizes = {str(p.relative_to(folder)): p.stat().st_size for p in folder.rglob("*") if p.is_file()}
    assert set(sizes) == FILES
    variables = sizes["variables/variables.data-00000-of-00001"]
    # Beside the weights that is what TensorFlow knows of the objects, some 200 bytes for each.
    assert parameter_bytes(model) < variables < parameter_bytes(model) + 10_000
    assert sizes["saved_model.pb"] < 160_000
    weights = tf.saved_model.load(str(folder)).weights
    head = model.variables["params"]["head"]["kernel"]
    np.testing.assert_array_equal(weights["params/head/kernel"].numpy(), head)
    assert len(weights) == len(jax.tree.leaves(model.variables))


def test_names_no_files_of_this_machine(exported):
    _, folder, _ = exported
    here = str(Path(jaxtrain.__file__).parent).encode()
    for name in FILES:
        assert here not in (folder / name).read_bytes()


@pytest.mark.parametrize("exported", ["resnet"], indirect=True)
def test_snippet_needs_neither_jaxtrain_nor_jax(exported):
    model, folder, _ = exported
    assert_runs(savedmodel, folder, model, ["jaxtrain", "jax", "jaxlib"])


def test_nothing_is_logged(tmp_path):
    program = (
        "from pathlib import Path\n"
        "import numpy as np\n"
        "from formats.sources import source\n"
        "from jaxtrain import formats\n"
        "exporter = formats.exporter('savedmodel')\n"
        "exporter.save(source(), Path('.'), formats.Options())\n"
        "exporter.load(Path('.'), 'logits')(np.zeros((2, 28, 28, 1), np.uint8))\n"
    )
    quiet = {"TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS"}
    environment = {name: value for name, value in os.environ.items() if name not in quiet}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == done.stdout == ""


def test_variables_of_every_dtype(tmp_path):
    model = odd_dtypes()
    savedmodel.save(model, tmp_path, Options())
    image = images(model.image_shape, 3)
    found = savedmodel.load(tmp_path, "logits")(image)
    np.testing.assert_allclose(found, reference(model, image), atol=1e-5)


def test_bfloat16_is_as_near_as_its_precision(tmp_path):
    model = source("mlp", dtype="bfloat16")
    savedmodel.save(model, tmp_path, Options())
    image = images(model.image_shape, 3)
    found = savedmodel.load(tmp_path, "probabilities")(image)
    np.testing.assert_allclose(found, jax.nn.softmax(reference(model, image)), atol=1e-2)


def test_a_model_of_one_batch_size_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"format savedmodel: .*batches of any size") as caught:
        savedmodel.save(of_one_batch_size(), tmp_path, Options())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", sorted(FILES - {"fingerprint.pb"}))
def test_missing_and_cut_files_are_named(tmp_path, name):
    savedmodel.save(MODELS["mlp"], tmp_path, Options())
    path = tmp_path / name
    spoil(path, "truncated")
    with pytest.raises(UsageError, match=r"saved_model.pb and its variables cannot be") as caught:
        savedmodel.load(tmp_path, "logits")
    assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(UsageError, match=f"{name} is missing; export the model again"):
        savedmodel.load(tmp_path, "logits")


def test_a_changed_weight_is_found(tmp_path):
    savedmodel.save(MODELS["mlp"], tmp_path, Options())
    path = tmp_path / "variables/variables.data-00000-of-00001"
    spoil(path, "flipped")
    with pytest.raises(UsageError, match="Checksum does not match"):
        savedmodel.load(tmp_path, "logits")
