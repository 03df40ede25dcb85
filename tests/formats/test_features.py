"""Models of features, in every format."""

import dataclasses
import json
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from formats.sources import CLASS_NAMES, reference, source

from jaxtrain import models, state
from jaxtrain.config import from_dict
from jaxtrain.config.schema import MlpConfig, ModelConfig
from jaxtrain.formats import FORMATS, Options, Source, beside, exporter
from jaxtrain.formats.contract import LOGITS, PROBABILITIES
from jaxtrain.normalise import Normalise
from jaxtrain.predictor.restored import apply

FEATURES = 7
# Of very different sizes, as features are.
MEAN = np.array([0, 100, -3e5, 1e-3, 5, 0, 2.0])
STD = np.array([1, 20, 7e4, 1e-4, 1, 1e-6, 300.0])


def rows(n: int, seed: int = 0) -> np.ndarray:
    normal = np.random.RandomState(seed).normal(size=(n, FEATURES))
    return (MEAN + STD * normal).astype(np.float32)


def of_features(hidden: int = 16, scale: tuple[float, ...] = (1.0,) * FEATURES) -> Source:
    """An MLP of standardised features, those of `rows` times `scale`."""
    config = ModelConfig(mlp=MlpConfig(hidden_sizes=(hidden,)))
    model = models.build(config, len(CLASS_NAMES))
    mean, std = ((each * scale).tolist() for each in (MEAN, STD))
    normalise = Normalise(tuple(mean), tuple(std))
    variables = state.init_model(model, np.uint32(3), (FEATURES,))
    return dataclasses.replace(
        source(),
        apply=lambda variables, features: apply(model, normalise, variables, features),
        variables=jax.tree.map(lambda x: 3 * np.asarray(x), variables),
        image_shape=(FEATURES,),
        calibration=lambda: rows(200, seed=1),
    )


@pytest.fixture(scope="module", params=FORMATS)
def exported(request, tmp_path_factory):
    """The name of a format, the exported model and its folder."""
    folder = tmp_path_factory.mktemp(request.param)
    model = of_features()
    said = exporter(request.param).save(model, folder, Options())
    beside.write(
        folder,
        request.param,
        model,
        step=3,
        config=from_dict({"train": {"steps": 3}, "data": {"standardize": True}}),
        said=said,
        snippet=exporter(request.param).SNIPPET,
        needs=FORMATS[request.param].needs,
    )
    return request.param, model, folder


def test_gives_the_models_outputs_in_batches_of_any_size(exported):
    name, model, folder = exported
    for output in (LOGITS, PROBABILITIES):
        run = exporter(name).load(folder, output)
        for count in (1, 2, 9):
            features = rows(count, seed=count)
            expected = reference(model, features)
            if output == PROBABILITIES:
                expected = np.asarray(jax.nn.softmax(expected))
            found = run(features)
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_what_lies_beside_it_says_so(exported):
    name, _, folder = exported
    found = beside.read(folder)
    assert found.image_shape == (FEATURES,)
    assert found.signature["input"] == {
        "name": "features",
        "dtype": "float32",
        "shape": ["batch", FEATURES],
    }
    readme = (folder / "README.md").read_text("utf-8")
    assert f"exported by jaxtrain as {name}" in readme
    assert "It takes vectors of 7 features,\nas float32, in a batch of any size" in readme
    assert "It standardises them itself" in readme
    assert "image" not in readme
    assert max(map(len, readme.splitlines())) <= 100


def test_the_readmes_programs_run(exported):
    _, model, folder = exported
    readme = (folder / "README.md").read_text("utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (made,) = re.findall(r"^    (numpy\.save.*)\n", readme, re.MULTILINE)
    features = rows(8)
    before = f"import numpy\nrows = {features.tolist()}\n{made}\n"
    done = subprocess.run(
        [sys.executable, "-I", "-X", "utf8", "-c", before + program],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    probabilities = np.asarray(jax.nn.softmax(reference(model, features)))
    lines = [line.rsplit(" ", 1) for line in done.stdout.splitlines()]
    classes = json.loads((folder / "classes.json").read_text("utf-8"))
    assert [name for name, _ in lines] == [classes[k] for k in probabilities.argmax(1)]
    found = [float(text) for _, text in lines]
    np.testing.assert_allclose(found, probabilities.max(1), atol=2e-5)


@pytest.mark.parametrize(("quantize", "bound"), [("float16", 0.05), ("int8", 0.1)])
def test_a_quantized_model_knows_features_of_different_sizes(quantize, bound, tmp_path):
    """Statistics that float16 cannot hold are lost in it, as `jaxtrain export` finds out."""
    scale = (1.0, 0.1, 1e-3, 1e2, 1.0, 1e3, 1.0) if quantize == "float16" else (1.0,) * FEATURES
    model = of_features(hidden=256, scale=scale)
    exporter("tflite").save(model, tmp_path, Options(quantize=quantize))
    features = np.float32(rows(99) * np.array(scale))
    found = exporter("tflite").load(tmp_path, PROBABILITIES)(features)
    expected = np.asarray(jax.nn.softmax(reference(model, features)))
    np.testing.assert_allclose(found, expected, atol=bound)
    size = (tmp_path / "model.tflite").stat().st_size
    parameters = sum(leaf.size for leaf in jax.tree.leaves(model.variables))
    assert size < {"float16": 2.2, "int8": 1.4}[quantize] * parameters + 5000
