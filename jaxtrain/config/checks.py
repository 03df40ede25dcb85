"""What the values of a key must be: a value to a complaint ("must be above 0") or None.

Never called with None, NaN or an infinity: those are refused before.
"""

from collections.abc import Callable
from typing import Any

Check = Callable[[Any], str | None]


def float32_range(value: float) -> str | None:
    """What float32 holds, in which the step computes."""
    return None if value < 3.4e38 else "must be below 3.4e38, what float32 holds"


def positive(value: float) -> str | None:
    """Above 0, as float32 holds it."""
    return "must be above 0" if value <= 0 else float32_range(value)


def non_negative(value: float) -> str | None:
    """0 or more, as float32 holds it."""
    return "must be 0 or more" if value < 0 else float32_range(value)


def fraction(value: float) -> str | None:
    """A share that is never the whole: [0, 1)."""
    return None if 0 <= value < 1 else "must be at least 0 and below 1"


def proper_fraction(value: float) -> str | None:
    """A share that is neither nothing nor the whole: (0, 1)."""
    return None if 0 < value < 1 else "must be above 0 and below 1"


def channel_count(value: int) -> str | None:
    """What image files are decoded to."""
    return None if value in (1, 3, 4) else "must be 1 (grey), 3 (colour) or 4 (with alpha)"


def colour(value: tuple[int, ...]) -> str | None:
    """One number for grey, or three for red, green and blue."""
    if len(value) in (1, 3) and all(0 <= part <= 255 for part in value):
        return None
    return "must be one number, or three, from 0 to 255"


def unit_interval(value: float) -> str | None:
    """From 0 to 1, both ends included."""
    return None if 0 <= value <= 1 else "must be between 0 and 1"


def seed_range(value: int) -> str | None:
    """What fits in 32 unsigned bits."""
    return None if 0 <= value < 2**32 else "must be between 0 and 4294967295"


def thread_count(value: int) -> str | None:
    """More threads than this only get in each other's way."""
    return None if 0 < value <= 256 else "must be between 1 and 256"


def batch_count(value: int) -> str | None:
    """More batches than these are not read ahead, but fill the memory."""
    return None if 0 < value <= 1000 else "must be between 1 and 1000"


def class_count(value: int) -> str | None:
    """What a softmax layer is for; a typo must not take all memory."""
    return None if 0 < value <= 10**6 else "must be between 1 and 1000000"


def call_length(value: int) -> str | None:
    """A few calls' steps may be in flight: more than this would make a stop wait for long."""
    return None if 0 < value <= 1000 else "must be between 1 and 1000"


def peer_timeout(value: float) -> str | None:
    """Shorter than this a busy machine looks lost; longer than this nobody waits."""
    return None if 2 <= value <= 86400 else "must be between 2 and 86400"


def step_count(value: int) -> str | None:
    """What an int32 counter holds."""
    return None if 0 < value < 2**31 else "must be above 0 and below 2147483648"


def skip_limit(value: int) -> str | None:
    """After more than this in a row no update will be finite any more."""
    return None if 0 <= value <= 10**6 else "must be between 0 and 1000000"


def all_positive(values: tuple[float, ...]) -> str | None:
    """Every element above 0."""
    return None if all(value > 0 for value in values) else "must hold only values above 0"


def image_sides(value: tuple[int, ...]) -> str | None:
    """One side for squares, or height and width."""
    fits = len(value) in (1, 2) and all(0 < side <= 2**14 for side in value)
    return None if fits else "must be one side or height,width, each between 1 and 16384"


def image_shape(value: tuple[int, ...]) -> str | None:
    """Height, width and channels; or how many features."""
    fits = len(value) in (1, 3) and all(0 < side <= 2**14 for side in value)
    return None if fits else "must be height,width,channels, or features; each from 1 to 16384"


def crop_share(value: float) -> str | None:
    """A share of a side: less than a hundredth is less than a pixel of many images."""
    return None if 0.01 <= value <= 1 else "must be at least 0.01 and at most 1"


def channel_numbers(value: tuple[float, ...]) -> str | None:
    """Numbers that pixels in 0..1 can be moved by."""
    fits = value and all(-1e6 <= number <= 1e6 for number in value)
    return None if fits else "must hold one number or one a channel, each within 1e6 of 0"


def channel_scales(value: tuple[float, ...]) -> str | None:
    """Numbers that pixels in 0..1 can be divided by."""
    fits = value and all(1e-6 <= number <= 1e6 for number in value)
    return None if fits else "must hold one number or one a channel, each between 1e-6 and 1e6"


def synthetic_examples(value: int) -> str | None:
    """Labels of more would not fit in the memory of every machine."""
    return None if 0 < value <= 10**8 else "must be between 1 and 100000000"


def non_empty(value: str) -> str | None:
    """Some text."""
    return None if value else "must not be empty"


def choice(*names: str) -> Check:
    """A check for one of `names`; the message lists them all."""

    def check(value: str) -> str | None:
        return None if value in names else f"must be one of {', '.join(names)}"

    return check
