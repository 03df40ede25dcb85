"""Operations that mix two images of a batch, and their labels by the same shares.

The partner of a row is its neighbour: of rows 2k and 2k + 1 the other one. A batch is a random
permutation of the examples, so neighbours are as random as any other pairs, and as they are always
on one device and in one part of a step, nothing has to be sent. Both draw the same numbers, which
belong to the pair: what one image gives the other gets, and each example counts once in a step.
"""

import abc
import dataclasses
import math
from typing import Final

import jax
import jax.numpy as jnp

from jaxtrain.augment.draws import uniform
from jaxtrain.augment.erasing import rectangles

# Smaller ones only ever give whole images, larger ones halves.
_LEAST: Final = 0.001
_MOST: Final = 100

# Draws of a pair, by position: whether it is mixed, its share (two), the middle of the rectangle
# (two), and whether that is pasted.
_DRAWS: Final = 6


class Mixing(abc.ABC):
    """One way to mix. Subclasses are frozen dataclasses of its arguments.

    Attributes:
        p: share of the pairs that are mixed.
    """

    p: float

    @property
    @abc.abstractmethod
    def idle(self) -> bool:
        """Whether its arguments have it mix nothing at all."""

    @abc.abstractmethod
    def weights(
        self, draws: jax.Array, image_shape: tuple[int, ...]
    ) -> tuple[jax.Array, jax.Array]:
        """How much of each image is left.

        Args:
            draws: float32 `[batch, 6]` in [0, 1).
            image_shape: of one example.

        Returns:
            The image's weight at each place, float32 in 0..1, which broadcasts to the images; and
            its mean, its share of the label, float32 `[batch]`.
        """

    def __call__(
        self, key: jax.Array, image: jax.Array, row: jax.Array, mask: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The mixed images.

        Args:
            key: typed key `[]` of this operation at this step.
            image: float32 `[batch, ...]`, an even number of rows.
            row: int32 `[batch]`, each image's row in the global batch; 2k and then 2k + 1.
            mask: bool `[batch]`; nothing is mixed with a row that is False.

        Returns:
            Images of the same shape, dtype and range, and float32 `[batch]`, each row's own share
            of its image and label; the rest is its partner's. With a share of 1 the very image.
        """
        draws = uniform(key, row - row % 2, _DRAWS)
        mixed = (draws[:, 0] < self.p) & partners(mask)
        weight, share = self.weights(draws, image.shape[1:])
        weight = jnp.where(_per_example(mixed, image.ndim), weight, 1.0)
        blended = weight * image + (1.0 - weight) * partners(image)
        return blended, jnp.where(mixed, share, 1.0)


@dataclasses.dataclass(frozen=True)
class _OfOneKind(Mixing):
    alpha: float
    p: float = 1.0

    def __post_init__(self) -> None:
        _check_alpha("alpha", self.alpha, may_be_zero=True)
        _check_share("p", self.p)

    @property
    def idle(self) -> bool:
        """As `Mixing`."""
        return not self.alpha or not self.p


@dataclasses.dataclass(frozen=True)
class Mixup(_OfOneKind):
    """Adds two images by their shares (Zhang et al., "mixup: Beyond ...", 2018).

    Attributes:
        alpha: of the share's distribution, Beta(alpha, alpha); 0 mixes nothing.
        p: share of the pairs that are mixed.
    """

    alpha: float = 0.2
    p: float = 1.0

    def weights(
        self, draws: jax.Array, image_shape: tuple[int, ...]
    ) -> tuple[jax.Array, jax.Array]:
        """As `Mixing`."""
        share = symmetric_beta(self.alpha, draws[:, 1], draws[:, 2])
        return _per_example(share, 1 + len(image_shape)), share


@dataclasses.dataclass(frozen=True)
class Cutmix(_OfOneKind):
    """Pastes a rectangle of another image (Yun et al., "CutMix: ...", 2019).

    It has the image's shape, and its middle is any pixel with the same chance; it may overhang, and
    what is pasted says the share.

    Attributes:
        alpha: of the distribution of the share that is left by a rectangle that does not overhang,
            Beta(alpha, alpha); 0 mixes nothing.
        p: share of the pairs that are mixed.
    """

    alpha: float = 1.0
    p: float = 1.0

    def weights(
        self, draws: jax.Array, image_shape: tuple[int, ...]
    ) -> tuple[jax.Array, jax.Array]:
        """As `Mixing`."""
        height, width, _ = image_shape
        sides = jnp.array([[height, width]], jnp.float32)
        share = symmetric_beta(self.alpha, draws[:, 1], draws[:, 2])
        size = (jnp.sqrt(1.0 - share)[:, jnp.newaxis] * sides).astype(jnp.int32)
        corner = (draws[:, 3:5] * sides).astype(jnp.int32) - size // 2
        pasted = rectangles(corner, size, (height, width))
        return jnp.where(pasted, 0.0, 1.0)[..., jnp.newaxis], 1.0 - pasted.mean(axis=(1, 2))


@dataclasses.dataclass(frozen=True)
class MixupOrCutmix(Mixing):
    """One of both for each pair, as published recipes for ImageNet have it.

    Attributes:
        mixup: alpha of `Mixup`.
        cutmix: alpha of `Cutmix`.
        p: share of the pairs that are mixed.
        switch: share of those that are mixed by `Cutmix`.
    """

    mixup: float = 0.1
    cutmix: float = 1.0
    p: float = 1.0
    switch: float = 0.5

    def __post_init__(self) -> None:
        for name in ("mixup", "cutmix"):
            _check_alpha(name, getattr(self, name), may_be_zero=False)
        for name in ("p", "switch"):
            _check_share(name, getattr(self, name))

    @property
    def idle(self) -> bool:
        """As `Mixing`."""
        return not self.p

    def weights(
        self, draws: jax.Array, image_shape: tuple[int, ...]
    ) -> tuple[jax.Array, jax.Array]:
        """As `Mixing`."""
        added, added_share = Mixup(self.mixup).weights(draws, image_shape)
        pasted, pasted_share = Cutmix(self.cutmix).weights(draws, image_shape)
        cut = draws[:, 5] < self.switch
        weight = jnp.where(_per_example(cut, pasted.ndim), pasted, added)
        return weight, jnp.where(cut, pasted_share, added_share)


def partners(rows: jax.Array) -> jax.Array:
    """Each row's partner: `[batch, ...]`, of an even number of rows, with neighbours swapped."""
    return rows.reshape(-1, 2, *rows.shape[1:])[:, ::-1].reshape(rows.shape)


def symmetric_beta(alpha: float, first: jax.Array, second: jax.Array) -> jax.Array:
    """Draws of Beta(alpha, alpha), each a closed form of two uniform draws.

    With T of Student's distribution of 2 alpha degrees of freedom, this is the one of
    (1 + T / sqrt(2 alpha + T^2)) / 2, and T is sqrt(2 alpha (U^(-1/alpha) - 1)) cos(2 pi V) of
    uniform U and V (Bailey, "Polar generation of random variates with the t-distribution", 1994;
    Devroye, "Random variate generation in one line of code", 1996). Written with U^(1/alpha), which
    cannot overflow, and with V's half circle, whose cosine has the same distribution.

    Args:
        alpha: above 0.
        first: float32 `[batch]` in [0, 1).
        second: the same, independent of it.

    Returns:
        Float32 `[batch]` in 0..1, multiples of 2^-24: one and the rest give exactly 1, so that no
        mixed value is larger than both that it is of.
    """
    exponent = jnp.log1p(-first) / alpha
    power = jnp.maximum(jnp.exp(exponent), 1e-37)  # so that not both parts of the sum can be 0
    rest = -jnp.expm1(exponent) * jnp.cos(math.pi * second) ** 2
    larger = 0.5 + 0.5 * jnp.sqrt(rest / (power + rest))
    return jnp.where(second < 0.5, larger, 1.0 - larger)


def _per_example(values: jax.Array, dimensions: int) -> jax.Array:
    """`[batch]` with dimensions of 1 after it."""
    return values.reshape(-1, *[1] * (dimensions - 1))


def _check_alpha(name: str, value: float, *, may_be_zero: bool) -> None:
    if not _LEAST <= value <= _MOST and not (may_be_zero and value == 0):
        raise ValueError(
            f"{name} must be {'0, or ' if may_be_zero else ''}between {_LEAST} and {_MOST}"
        )


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be between 0 and 1")
