"""RandAugment and TrivialAugment: to each image its own of 14 operations, at its own strength.

Operations, ranges and signs are those of torchvision's `RandAugment` and `TrivialAugmentWide`, with
nearest neighbours. Solarize alone begins at a threshold of 256, not 255, so that strength 0 changes
nothing, as in AutoAugment (Cubuk et al., 2019). Like theirs, the operations work on 8-bit values:
images are rounded to these, and values that are not changed then stay what they were.

A switch over operations, mapped over a batch, would do them all for every image. They are three
families instead, curves, blends and motions, each done once for the whole batch, with numbers for
each image that leave it as it is in all but one of them.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxtrain.augment.draws import Operation, uniform
from jaxtrain.augment.geometry import nearest
from jaxtrain.augment.levels import (
    BLACK,
    FACTOR_BITS,
    GREY,
    LEVELS,
    MEAN,
    SMOOTH,
    WHITE,
    Blend,
    Curve,
    blended,
    curved,
    quantised,
)

# The strengths are 0 to 30.
STRONGEST: Final = 30

# More than this leaves nothing of an image, and takes long to compile.
_MOST_LAYERS: Final = 10

_MOST_FRACTION_BITS: Final = 16


class Range(NamedTuple):
    """What the greatest strength is.

    Attributes:
        shear: columns per row.
        shift: rows and columns.
        degrees: of a turn.
        factor: of a blend, its distance from 1.
        bits: that posterize drops.
    """

    shear: float
    shift: tuple[float, float]
    degrees: float
    factor: float
    bits: int


# The first of `changes` is none.
_NOTHING = 0


class Change(NamedTuple):
    """What one operation does to an image, as `nearest`, `Curve` and `Blend` take it."""

    matrix: tuple[float, ...] = (1, 0, 0, 0, 1, 0)
    threshold: int = LEVELS
    mask: int = WHITE
    stretch: bool = False
    equalize: bool = False
    other: int = BLACK
    factor: float = 1.0


def changes(most: Range, share: float, sides: tuple[int, int]) -> dict[str, Change]:
    """The 14 operations.

    Args:
        most: what the greatest strength is.
        share: of it, -1 to 1; operations that have no sign take it without.
        sides: height and width.
    """
    strength = abs(share)
    slant, factor = share * most.shear, 1 + share * most.factor
    down, right = (int(share * pixels) for pixels in most.shift)
    return {
        "identity": Change(),
        "shear_x": Change((1, 0, 0, slant, 1, 0)),
        "shear_y": Change((1, slant, 0, 0, 1, 0)),
        "translate_x": Change((1, 0, 0, 0, 1, -right)),
        "translate_y": Change((1, 0, -down, 0, 1, 0)),
        "rotate": Change(_turn(math.radians(share * most.degrees), sides)),
        "brightness": Change(other=BLACK, factor=factor),
        "color": Change(other=GREY, factor=factor),
        "contrast": Change(other=MEAN, factor=factor),
        "sharpness": Change(other=SMOOTH, factor=factor),
        "posterize": Change(mask=WHITE & -(1 << round(strength * most.bits))),
        "solarize": Change(threshold=math.ceil(LEVELS * (1 - strength))),
        "autocontrast": Change(stretch=True),
        "equalize": Change(equalize=True),
    }


def _turn(angle: float, sides: tuple[int, int]) -> tuple[float, ...]:
    """The matrix of a turn about the centre, counter-clockwise as seen."""
    cos, sin = math.cos(angle), math.sin(angle)
    y, x = sides[0] / 2, sides[1] / 2
    return (cos, sin, y - cos * y - sin * x, -sin, cos, x + sin * y - cos * x)


class _Policy(Operation):
    """An operation of 8-bit changes."""

    def complaint(self, image_shape: tuple[int, ...]) -> str | None:
        """Refuses images that are neither grey nor RGB."""
        channels = image_shape[-1]
        if channels in (1, 3):
            return None
        return f"needs 1 or 3 channels, but the images have {channels}; leave it out"


@dataclasses.dataclass(frozen=True)
class RandAugment(_Policy):
    """Some operations, one after the other, all at one strength (Cubuk et al., 2020).

    Attributes:
        layers: how many; the paper's N.
        magnitude: the strength, 0 to 30; the paper's M.
        fill: value of what comes from outside, 0 to 1.
        p: probability that one of them is done, each on its own.
    """

    layers: int = 2
    magnitude: int = 9
    fill: float = 0.0
    p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.layers <= _MOST_LAYERS:
            raise ValueError(f"layers must be between 0 and {_MOST_LAYERS}")
        if not 0 <= self.magnitude <= STRONGEST:
            raise ValueError(f"magnitude must be between 0 and {STRONGEST}")
        if not 0 < self.p <= 1:
            raise ValueError("p must be above 0, and 1 at most")
        _check_fill(self.fill)

    def __call__(self, key: jax.Array, image: jax.Array, row: jax.Array) -> jax.Array:
        """As `Operation`."""
        height, width = image.shape[1:3]
        most = Range(0.3, (150 / 331 * height, 150 / 331 * width), 30.0, 0.9, 4)
        choices = Choices.of(most, [self.magnitude], (height, width))
        return _changed(
            key, image, choices, uniform(key, row, self.layers), fill=self.fill, p=self.p
        )


@dataclasses.dataclass(frozen=True)
class TrivialAugment(_Policy):
    """One operation at any strength (Mueller and Hutter, 2021; their wide ranges).

    Attributes:
        fill: value of what comes from outside, 0 to 1.
    """

    fill: float = 0.0

    def __post_init__(self) -> None:
        _check_fill(self.fill)

    def __call__(self, key: jax.Array, image: jax.Array, row: jax.Array) -> jax.Array:
        """As `Operation`."""
        most = Range(0.99, (32.0, 32.0), 135.0, 0.99, 6)
        choices = Choices.of(most, range(STRONGEST + 1), (image.shape[1], image.shape[2]))
        return _changed(key, image, choices, uniform(key, row, 1), fill=self.fill)


def _changed(
    key: jax.Array,
    image: jax.Array,
    choices: "Choices",
    draws: jax.Array,
    *,
    fill: float,
    p: float = 1.0,
) -> jax.Array:
    """Images after one change for each draw, float32 `[batch, layers]` in [0, 1), below `p`."""
    before = after = quantised(image)
    last = len(choices.rows) - 1
    for draw in draws.T:
        choice = jnp.minimum((draw / p * len(choices.rows)).astype(jnp.int32), last)
        choice = jnp.where(draw < p, choice, _NOTHING)
        after = choices.applied(key, after, choice, fill)
    # As XLA compiles a division by 255.
    return jnp.where(after == before, image, after.astype(jnp.float32) * np.float32(1 / WHITE))


class Choices(NamedTuple):
    """Changes to choose from.

    Attributes:
        rows: int32 `[changes, 12]`: the numbers of a `Change`, matrix and factor in fixed point.
        bits: binary digits of the matrix after the point.
    """

    rows: NDArray[np.int32]
    bits: int

    @classmethod
    def of(cls, most: Range, strengths: Iterable[int], sides: tuple[int, int]) -> "Choices":
        """All operations at these strengths, 0 to 30, with both signs."""
        shares = [sign * strength / STRONGEST for strength in strengths for sign in (1, -1)]
        found = [one for share in shares for one in changes(most, share, sides).values()]
        # No position is more than 4 (height + width) half pixels away.
        bits = min(_MOST_FRACTION_BITS, 30 - math.ceil(math.log2(4 * sum(sides))))
        units = [2**bits] * 6 + [1] * 5 + [2**FACTOR_BITS]
        rows = np.array([[*change.matrix, *change[1:]] for change in found], np.float64)
        return cls(np.rint(rows * units).astype(np.int32), bits)

    def applied(
        self, key: jax.Array, image: jax.Array, choice: jax.Array, fill: float
    ) -> jax.Array:
        """Images after their changes.

        Args:
            key: as in `apart`.
            image: uint8 `[batch, H, W, C]`.
            choice: int32 `[batch]`, a row for each.
            fill: value of what comes from outside, 0 to 1.
        """
        chosen = jnp.asarray(self.rows)[choice]
        threshold, mask, stretch, equalize, other, factor = chosen[:, 6:].T
        image = curved(key, image, Curve(threshold, mask, stretch > 0, equalize > 0))
        image = blended(key, image, Blend(other, factor))
        return nearest(image, chosen[:, :6], round(fill * WHITE), self.bits)


def _check_fill(fill: float) -> None:
    if not 0 <= fill <= 1:
        raise ValueError("fill must be between 0 and 1")
