import flax.linen as nn
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxtrain import models, state
from jaxtrain.config.schema import ModelConfig
from jaxtrain.models.summary import Layer, layers


def of(name: str, image_shape: tuple[int, ...], classes: int = 10) -> list[Layer]:
    model = models.build(ModelConfig(name=name), classes)
    return layers(model, state.abstract_model(model, image_shape, classes), image_shape)


def test_an_mlp() -> None:
    assert of("mlp", (28, 28, 1)) == [
        Layer("hidden_0", "Dense", (1, 512), 784 * 512 + 512, 2 * 784 * 512),
        Layer("head", "Dense", (1, 10), 512 * 10 + 10, 2 * 512 * 10),
    ]


@pytest.mark.parametrize(
    ("name", "multiply_adds", "parameters"),
    # The multiply-adds that fvcore and torchinfo give for torchvision's.
    [("resnet18", 1_814_073_344, 11_689_512), ("resnet50", 4_089_184_256, 25_557_032)],
)
def test_a_resnet_has_the_published_numbers(name: str, multiply_adds: int, parameters: int) -> None:
    found = of(name, (224, 224, 3), 1000)
    assert sum(layer.flops for layer in found) == 2 * multiply_adds
    assert sum(layer.parameters for layer in found) == parameters
    assert (found[0].name, found[0].output) == ("stem_conv", (1, 112, 112, 64))
    assert found[-1].name == "head"


class Twice(nn.Module):
    """One layer that is called twice, inside a module with parameters of its own."""

    num_classes: int

    @nn.compact
    def __call__(self, image):
        scale = self.param("scale", nn.initializers.ones, (1, 4))
        square = nn.Dense(4, name="square")
        hidden = square(square(image.reshape(image.shape[0], -1)[:, :4]) * scale)
        return nn.Dense(self.num_classes, name="head")(hidden)


class Nnx(nnx.Module):
    def __init__(self, num_classes: int, *, rngs: nnx.Rngs) -> None:
        self.head = nnx.Linear(20, num_classes, rngs=rngs)

    def __call__(self, image):
        return self.head(image.reshape(image.shape[0], -1))


def test_a_layer_that_is_called_twice_holds_its_parameters_once() -> None:
    assert of("models.test_summary:Twice", (5, 4, 1)) == [
        Layer("square", "Dense", (1, 4), 20, 2 * 2 * 16),
        Layer("head", "Dense", (1, 10), 50, 2 * 40),
        Layer("Twice", "Twice", (1, 10), 4, 0),
    ]


def test_an_nnx_module_is_one_layer() -> None:
    (layer,) = of("models.test_summary:Nnx", (5, 4, 1))
    assert (layer.output, layer.parameters, layer.flops) == ((1, 10), 210, 400)


def test_half_precision() -> None:
    model = models.build(ModelConfig(dtype="bfloat16"), 10)
    assert model.dtype == jnp.bfloat16
    assert layers(model, state.abstract_model(model, (4, 4, 1), 10), (4, 4, 1))[0].flops > 0
