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
from jaxtrain.predictor.restored import apply
from jaxtrain.step import Normalise

FEATURES = 7
# Of very different sizes, as features are.
MEAN = np.array([0, 100, -3e5, 1e-3, 5, 0, 2.0])
STD = np.array([1, 20, 7e4, 1e-4, 1, 1e-6, 300.0])


def rows(n: int, seed: int = 0) -> np.ndarray:
    normal = np.random.RandomState(seed).normal(size=(n, FEATURES))
    return (MEAN + STD * normal).astype(np.float32)


def of_features() -> Source:
    """An MLP of standardised features."""
    config = ModelConfig(mlp=MlpConfig(hidden_sizes=(16,)))
    model = models.build(config, len(CLASS_NAMES))
    normalise = Normalise(tuple(MEAN.tolist()), tuple(STD.tolist()))
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


@pytest.mark.parametrize("quantize", ["float16", "int8"])
def test_a_quantized_model_takes_floats(quantize, tmp_path):
    """Integers of one scale for all features tell little of the small ones: `export` finds out."""
    exporter("tflite").save(of_features(), tmp_path, Options(quantize=quantize))
    found = exporter("tflite").load(tmp_path, PROBABILITIES)(rows(9))
    assert found.shape == (9, len(CLASS_NAMES))
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-3)
