"""Small trained-looking models that the tests of all formats share."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtrain import models, state
from jaxtrain.config.schema import MlpConfig, ModelConfig, ResnetConfig
from jaxtrain.formats import Source
from jaxtrain.step import Normalise

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
