"""The tensors of PyTorch's ResNets: names and shapes, and weights that depend on the names."""

import functools
import math
import zlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from jaxtrain import models, state
from jaxtrain.config.schema import ModelConfig, ResnetConfig
from jaxtrain.models import Model
from jaxtrain.models.resnet import ARCHITECTURES

Shapes = dict[str, tuple[int, ...]]

EXPANSION = 4


def torchvision(
    model: str, *, classes: int = 10, channels: int = 3, width: float = 1, side: int = 7
) -> Shapes:
    """The state dict of torchvision's and timm's `model`."""
    architecture = ARCHITECTURES[model]
    start = int(architecture.channels * width)
    shapes = {"conv1.weight": (start, channels, side, side), **_norm("bn1", start)}
    inputs = start
    for stage, size in enumerate(architecture.stage_sizes):
        for block in range(size):
            path = f"layer{stage + 1}.{block}"
            convolutions = list(_block(model, inputs, start * 2**stage))
            for index, shape in enumerate(convolutions, start=1):
                shapes[f"{path}.conv{index}.weight"] = shape
                shapes |= _norm(f"{path}.bn{index}", shape[0])
            outputs = convolutions[-1][0]
            if block == 0 and (stage > 0 or inputs != outputs):
                shapes[f"{path}.downsample.0.weight"] = (outputs, inputs, 1, 1)
                shapes |= _norm(f"{path}.downsample.1", outputs)
            inputs = outputs
    return {**shapes, "fc.weight": (classes, inputs), "fc.bias": (classes,)}


def huggingface(model: str, **options: Any) -> Shapes:
    """The state dict of Hugging Face's `ResNetForImageClassification`, in another order."""
    return {_renamed(name): shape for name, shape in torchvision(model, **options).items()}


def weights(shapes: Shapes) -> dict[str, NDArray[Any]]:
    """Tensors that depend on their names alone, as the golden logits were made with."""
    return {name: _tensor(name, shape) for name, shape in shapes.items()}


def ours(
    name: str, *, classes: int = 10, channels: int = 3, **resnet: Any
) -> tuple[Model, dict[str, Any]]:
    """This package's network of that name, and the shapes of its variables."""
    config = ModelConfig(name=name, resnet=ResnetConfig(**resnet))
    model = models.build(config, classes)
    init = functools.partial(state.init_model, model, image_shape=(32, 32, channels))
    return model, jax.eval_shape(init, np.uint32(0))


def logits(model: Model, variables: dict[str, Any], images: NDArray[np.float32]) -> NDArray[Any]:
    """What a network says of images `[batch, H, W, C]`, which are normalised."""
    parts = (variables["params"], variables["collections"])
    row = np.arange(len(images), dtype=np.int32)
    return np.asarray(model.apply(*parts, images, row=row, key=None)[0])


def _norm(path: str, channels: int) -> Shapes:
    floats = ("weight", "bias", "running_mean", "running_var")
    return {f"{path}.{leaf}": (channels,) for leaf in floats} | {f"{path}.num_batches_tracked": ()}


def _block(model: str, inputs: int, channels: int) -> Iterator[tuple[int, ...]]:
    if ARCHITECTURES[model].bottleneck:
        yield (channels, inputs, 1, 1)
        yield (channels, channels, 3, 3)
        yield (EXPANSION * channels, channels, 1, 1)
    else:
        yield (channels, inputs, 3, 3)
        yield (channels, channels, 3, 3)


def _renamed(name: str) -> str:
    path, _, leaf = name.rpartition(".")
    words = {"conv": "convolution", "bn": "normalization"}
    if path == "fc":
        return f"classifier.1.{leaf}"
    if path in ("conv1", "bn1"):
        return f"resnet.embedder.embedder.{words[path[:-1]]}.{leaf}"
    stage, block, layer = path.split(".", 2)
    if layer.startswith("downsample"):
        inner = f"shortcut.{'normalization' if layer.endswith('1') else 'convolution'}"
    else:
        inner = f"layer.{int(layer[-1]) - 1}.{words[layer[:-1]]}"
    return f"resnet.encoder.stages.{int(stage[5:]) - 1}.layers.{block}.{inner}.{leaf}"


def _tensor(name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    random = np.random.RandomState(zlib.crc32(name.encode()))
    if name.endswith("num_batches_tracked"):
        return np.zeros(shape, np.int64)
    if name.endswith("running_mean"):
        tensor = 0.1 * random.standard_normal(shape)
    elif name.endswith("running_var"):
        tensor = random.uniform(0.5, 1.5, shape)
    elif len(shape) == 4:
        tensor = random.standard_normal(shape) * math.sqrt(2 / math.prod(shape[1:]))
    elif len(shape) == 2:
        tensor = 0.02 * random.standard_normal(shape)
    elif name.endswith("weight"):
        tensor = random.uniform(0.2, 0.6, shape)
    else:
        tensor = 0.1 * random.standard_normal(shape)
    return np.asarray(tensor, np.float32)
