"""Examples as the network sees them: scaled, and shifted and divided by constants."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxtrain.config.schema import DataConfig
from jaxtrain.data import Statistics
from jaxtrain.data.examples import is_image, shape_text
from jaxtrain.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Normalise:
    """Examples as the network takes them: `(x - mean) / std` of images in 0..1, or of features.

    Attributes:
        mean: one number, or one a channel or feature.
        std: likewise.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, image: jax.Array) -> jax.Array:
        """Float32, of the same shape.

        Args:
            image: `[batch, H, W, C]`, uint8 or floats that are in 0..1 already; or features
                float32 `[batch, D]`.
        """
        image = unit_interval(image)
        last = (1,) * (image.ndim - 1) + (-1,)
        if self.mean != (0.0,):
            image -= jnp.asarray(self.mean, jnp.float32).reshape(last)
        if self.std != (1.0,):
            image /= jnp.asarray(self.std, jnp.float32).reshape(last)
        return image


def normalisation(
    config: DataConfig, image_shape: tuple[int, ...], known: Callable[[], Statistics]
) -> Normalise:
    """`data.mean` and `data.std`, or with `data.standardize` the statistics of the features.

    Args:
        config: the `data` section.
        image_shape: of one example.
        known: gives the statistics of the training examples; called if they are needed.

    Raises:
        UsageError: neither one number nor one a channel or feature; or images, or numbers beside
            the statistics, with `data.standardize`.
    """
    has_images = is_image(image_shape)
    numbers, each = (config.mean, config.std), "channel" if has_images else "feature"
    for name, values in zip(("mean", "std"), numbers, strict=True):
        if len(values) not in (1, image_shape[-1]):
            raise UsageError(
                f"data.{name}={values} holds {len(values)} numbers, but "
                f"{'images' if has_images else 'examples'} have {image_shape[-1]} {each}s; give "
                f"one number, or one a {each}"
            )
    if not config.standardize:
        return Normalise(*numbers)
    if has_images:
        raise UsageError(
            f"data.standardize=true is for features, but the examples are images of "
            f"{shape_text(image_shape)}; set data.mean and data.std, one number a channel"
        )
    if numbers != (DataConfig().mean, DataConfig().std):
        raise UsageError(
            f"data.standardize=true takes the place of data.mean={config.mean} and data.std="
            f"{config.std}; unset these, or data.standardize"
        )
    return Normalise(*known())


def unit_interval(image: jax.Array) -> jax.Array:
    """uint8 images to float32 in 0..1; floats stay as they are."""
    return image.astype(jnp.float32) / 255.0 if image.dtype == jnp.uint8 else image
