import json
from pathlib import Path

import jax
import numpy as np
import pytest
from formats.sources import (
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
from jaxtrain.formats import Options, stablehlo

MODELS = {"mlp": source("mlp"), "resnet": source("resnet", (12, 10, 3))}
ALL = Options(platforms=("cpu", "cuda", "rocm", "tpu"))


@pytest.fixture(scope="module", params=MODELS)
def exported(request, tmp_path_factory):
    """A model, its export for all platforms, and what the export says of itself."""
    folder = tmp_path_factory.mktemp(request.param)
    return MODELS[request.param], folder, stablehlo.save(MODELS[request.param], folder, ALL)


def test_gives_the_models_outputs_in_batches_of_any_size(exported):
    model, folder, _ = exported
    image = images(model.image_shape, 64)
    expected = reference(model, image)
    outputs = {"logits": expected, "probabilities": np.asarray(jax.nn.softmax(expected))}
    for output, values in outputs.items():
        run = stablehlo.load(folder, output)
        for n in (1, 3, 64):
            found = run(image[:n])
            assert found.shape == (n, 5)
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, values[:n], atol=1e-5)


def test_weights_are_stored_once_and_by_name(exported):
    model, folder, said = exported
    assert {path.name for path in folder.iterdir()} == {"model.stablehlo", "weights.npz"}
    assert said["files"] == {"program": "model.stablehlo", "weights": "weights.npz"}
    leaves = len(jax.tree.leaves(model.variables))
    # Each array has two headers, of 128 bytes and of some 200 with its name twice.
    assert (folder / "weights.npz").stat().st_size < parameter_bytes(model) + 400 * leaves
    assert (folder / "model.stablehlo").stat().st_size < 30_000
    with np.load(folder / "weights.npz") as weights:
        assert len(weights) == leaves
        head = model.variables["params"]["head"]["kernel"]
        np.testing.assert_array_equal(weights["params/head/kernel"], head)


def test_the_program_says_what_it_takes_gives_and_runs_on(exported):
    model, folder, said = exported
    program = jax.export.deserialize(bytearray((folder / "model.stablehlo").read_bytes()))
    assert program.platforms == ALL.platforms == tuple(said["platforms"])
    assert program.calling_convention_version == said["calling_convention_version"]
    (_, image), _ = jax.tree.unflatten(program.in_tree, program.in_avals)
    assert str(image) == f"uint8[batch,{','.join(map(str, model.image_shape))}]"
    outputs = jax.tree.unflatten(program.out_tree, program.out_avals)
    names = {name: str(aval) for name, aval in outputs.items()}
    assert names == {"logits": "float32[batch,5]", "probabilities": "float32[batch,5]"}
    assert json.loads(json.dumps(said)) == said


def test_names_no_files_of_this_machine(exported):
    _, folder, _ = exported
    here = str(Path(jaxtrain.__file__).parent).encode()
    assert here not in (folder / "model.stablehlo").read_bytes()


@pytest.mark.parametrize("exported", ["resnet"], indirect=True)
def test_snippet_needs_jax_and_numpy_alone(exported):
    model, folder, _ = exported
    assert_runs(stablehlo, folder, model, ["jaxtrain", "flax", "optax", "tensorflow"])
    lines = [line for line in stablehlo.SNIPPET.splitlines() if line]
    assert len(lines) <= 11


def test_a_program_for_other_platforms_is_refused(tmp_path):
    stablehlo.save(MODELS["mlp"], tmp_path, Options(platforms=("tpu", "cuda", "tpu")))
    with pytest.raises(UsageError) as caught:
        stablehlo.load(tmp_path, "logits")
    assert str(caught.value) == (
        "a StableHLO program for tpu,cuda cannot be run here, where JAX has cpu; export it with "
        "--platforms=tpu,cuda,cpu"
    )


def test_a_program_for_this_platform_and_others_runs(tmp_path):
    model = MODELS["mlp"]
    stablehlo.save(model, tmp_path, Options(platforms=("tpu", "cpu")))
    image = images(model.image_shape, 3)
    found = stablehlo.load(tmp_path, "logits")(image)
    np.testing.assert_allclose(found, reference(model, image), atol=1e-5)


def test_variables_of_every_dtype_are_files_of_numpy_alone(tmp_path):
    model = odd_dtypes()
    stablehlo.save(model, tmp_path, Options())
    image = images(model.image_shape, 3)
    found = stablehlo.load(tmp_path, "logits")(image)
    np.testing.assert_allclose(found, reference(model, image), atol=1e-5)
    with np.load(tmp_path / "weights.npz") as weights:
        dtypes = {name: weights[name].dtype.name for name in weights}
    assert dtypes == {
        "params/kernel": "uint16",
        "collections/counts/0": "uint32",
        "collections/counts/1": "int8",
        "collections/used": "bool",
        "collections/shift": "float16",
    }


def test_bfloat16_is_as_near_as_its_precision(tmp_path):
    model = source("mlp", dtype="bfloat16")
    stablehlo.save(model, tmp_path, Options())
    image = images(model.image_shape, 3)
    found = stablehlo.load(tmp_path, "probabilities")(image)
    np.testing.assert_allclose(found, jax.nn.softmax(reference(model, image)), atol=1e-2)


def test_a_model_of_one_batch_size_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"format stablehlo: .*batches of any size") as caught:
        stablehlo.save(of_one_batch_size(), tmp_path, Options())
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["model.stablehlo", "weights.npz"])
def test_missing_and_cut_files_are_named(tmp_path, name):
    stablehlo.save(MODELS["mlp"], tmp_path, Options())
    path = tmp_path / name
    spoil(path, "truncated")
    with pytest.raises(UsageError, match=f"{name} cannot be read .*export the model") as caught:
        stablehlo.load(tmp_path, "logits")
    assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(UsageError, match=f"{name} is missing; export the model again"):
        stablehlo.load(tmp_path, "logits")


def test_a_changed_weight_is_found(tmp_path):
    stablehlo.save(MODELS["mlp"], tmp_path, Options())
    path = tmp_path / "weights.npz"
    spoil(path, "flipped")
    with pytest.raises(UsageError, match=r"weights.npz cannot be read .*CRC"):
        stablehlo.load(tmp_path, "logits")


def test_weights_of_another_model_do_not_fit(tmp_path):
    for name, model in MODELS.items():
        (tmp_path / name).mkdir()
        stablehlo.save(model, tmp_path / name, Options())
    (tmp_path / "mlp/weights.npz").replace(tmp_path / "resnet/weights.npz")
    with pytest.raises(UsageError, match=r"weights.npz does not fit model.stablehlo") as caught:
        stablehlo.load(tmp_path / "resnet", "logits")
    assert "\n" not in str(caught.value)
