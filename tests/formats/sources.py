"""Small trained-looking models that the tests of all formats share."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtrain import models, state
from jaxtrain.config.schema import MlpConfig, ModelConfig, ResnetConfig
from jaxtrain.formats import Exporter, Source
from jaxtrain.normalise import Normalise

CLASS_NAMES = ("été", "hot dog", "naïve, “quoted”", "日本", "4")

_MODELS = {
    "mlp": ModelConfig(name="mlp", mlp=MlpConfig(hidden_sizes=(64, 32))),
    "resnet": ModelConfig(name="resnet8", resnet=ResnetConfig(width=0.5)),
}


def source(
    name: str = "mlp", image_shape: tuple[int, int, int] = (28, 28, 1), dtype: str = "float32"
) -> Source:
    """A `mlp` or a `resnet` with seeded variables, none of which is all zeros or ones."""
    config = _MODELS[name]
    config = ModelConfig(name=config.name, dtype=dtype, mlp=config.mlp, resnet=config.resnet)
    model = models.build(config, len(CLASS_NAMES))
    channels = image_shape[-1]
    normalise = Normalise((0.45, 0.5, 0.4)[:channels], (0.25, 0.3, 0.2)[:channels])

    def apply(variables: Any, image: jax.Array) -> jax.Array:
        row = jnp.arange(image.shape[0], dtype=jnp.int32)
        logits, _ = model.apply(
            variables["params"], variables["collections"], normalise(image), row=row, key=None
        )
        return logits

    return Source(
        apply=apply,
        variables=_variables(model, image_shape),
        image_shape=image_shape,
        class_names=CLASS_NAMES,
        calibration=lambda: images(image_shape, 40, seed=7),
    )


def images(image_shape: tuple[int, int, int], n: int, seed: int = 0) -> np.ndarray:
    """Uint8 images `[n, H, W, C]`, each with random bright and dark rows and columns."""
    random = np.random.RandomState(seed)
    height, width, channels = image_shape
    rows = random.uniform(0.1, 1.0, (n, height, 1, channels))
    columns = random.uniform(0.1, 1.0, (n, 1, width, channels))
    return (255 * rows * columns * random.uniform(0.2, 1.0, (n, 1, 1, 1))).astype(np.uint8)


def reference(source: Source, image: np.ndarray) -> np.ndarray:
    """The float32 logits `[n, classes]` that an exported model has to give."""
    return np.asarray(jax.jit(source.apply)(source.variables, image))


def parameter_bytes(source: Source) -> int:
    """Bytes of all arrays in the source's variables."""
    return state.tree_bytes(source.variables)


def assert_runs(exporter: Exporter, folder: Path, source: Source, blocked: Collection[str]) -> None:
    """Runs an export's SNIPPET in a process that cannot import `blocked`, and checks its lines."""
    image = images(source.image_shape, 8)
    np.save(folder / "images.npy", image)
    (folder / "classes.json").write_text(json.dumps(source.class_names), "utf-8")
    program = f"import sys; sys.modules.update(dict.fromkeys({list(blocked)!r}))\n"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program + exporter.SNIPPET],
        cwd=folder,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        check=True,
    )
    probabilities = np.asarray(jax.nn.softmax(reference(source, image)))
    lines = [line.rsplit(" ", 1) for line in done.stdout.splitlines()]
    assert [name for name, _ in lines] == [CLASS_NAMES[k] for k in probabilities.argmax(1)]
    found = [text for _, text in lines]
    assert all(len(text) == len("0.123456") for text in found)
    np.testing.assert_allclose([float(text) for text in found], probabilities.max(1), atol=2e-6)


def odd_dtypes() -> Source:
    """A model that has variables of every kind that a user's own module may have."""
    variables = {
        "params": {"kernel": np.linspace(-1, 1, 48 * 5).reshape(48, 5).astype(jnp.bfloat16)},
        "collections": {
            "counts": [np.array(3, np.uint32), np.arange(5, dtype=np.int8)],
            "used": np.array([True, False, True, True, True]),
            "shift": np.arange(5).astype(np.float16),
        },
    }

    def apply(variables: Any, image: jax.Array) -> jax.Array:
        more = variables["collections"]
        flat = image.reshape(image.shape[0], -1).astype(jnp.float32) / 255
        logits = flat @ variables["params"]["kernel"].astype(jnp.float32)
        logits = logits * more["counts"][0].astype(jnp.float32)
        logits = logits + more["shift"].astype(jnp.float32)[None] + more["counts"][1][None]
        return jnp.where(more["used"][None], logits, -1.0)

    return dataclasses.replace(source(), apply=apply, variables=variables, image_shape=(4, 4, 3))


def of_one_batch_size() -> Source:
    """A model that only takes batches of a known size."""

    def apply(variables: Any, image: jax.Array) -> jax.Array:
        return jnp.zeros((image.shape[0], 5)) + (1.0 if image.shape[0] > 4 else 0.0)

    return dataclasses.replace(source(), apply=apply)


def _variables(model: models.Model, image_shape: tuple[int, int, int]) -> Any:
    """Random variables, drawn by NumPy, as compiling a model's initialisation takes seconds."""
    random = np.random.RandomState(5)

    def drawn(path: Any, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        name = path[-1].key
        if name in ("scale", "var"):
            values = random.uniform(0.5, 1.5, leaf.shape)
        elif name in ("bias", "mean"):
            values = random.normal(0.0, 0.2, leaf.shape)
        else:
            values = random.normal(0.0, np.prod(leaf.shape[:-1]) ** -0.5, leaf.shape)
            if path[-2].key == "head":
                values *= 4  # for predictions of every class, some of them certain
        return values.astype(leaf.dtype)

    abstract = state.abstract_model(model, image_shape, len(CLASS_NAMES))
    return jax.tree.map_with_path(drawn, abstract)


def spoil(path: Path, damage: str) -> None:
    """Damages a file: `missing`, `empty`, `truncated`, `flipped`, `text`, or `other` names."""
    content = path.read_bytes()
    middle = len(content) // 2
    changed = {
        "empty": b"",
        "truncated": content[:middle],
        "flipped": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "text": b"no model",
        "other": content.replace(b"image", b"pixel"),
    }
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(changed[damage])
