"""Expected errors, the exit status of each, and what words for a person are made of.

Every message is one line that names the value, the limit and the fix. The command line prints it
without a traceback and exits with `status`; anything that is not a `JaxtrainError` is a fault of
ours and exits with 1.
"""

import unicodedata
from collections.abc import Sequence

# Controls, marks of direction, halves of characters, ends of lines and of paragraphs.
_STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")


class JaxtrainError(Exception):
    """An expected error.

    Attributes:
        status: what the process exits with.
        process: which of several processes says it; None: the first, or the only one.
    """

    status = 1
    process: int | None = None


class UsageError(JaxtrainError):
    """Bad usage, config or data, found before training starts."""

    status = 2


class LayoutError(UsageError):
    """A way to lie on devices that does not fit those that are here, or the model."""


class DataError(JaxtrainError):
    """Bad data found while running."""

    status = 3


class NonFiniteError(JaxtrainError):
    """A loss or a model output that is NaN or infinite."""

    status = 4


class CheckpointError(JaxtrainError):
    """A checkpoint that cannot be written or read."""

    status = 5


class ExportError(JaxtrainError):
    """An exported model whose outputs are not the checkpoint's."""

    status = 6


class PeerLostError(JaxtrainError):
    """Another process of this run never started, or is gone; the same command goes on."""

    status = 7


class Stopped(JaxtrainError):  # noqa: N818 - it is no error
    """Stopped by SIGTERM or SIGINT after saving; the same command goes on from there."""

    status = 75


def one_line(error: BaseException) -> str:
    """What an error of a library says, on one line; its repr if it says nothing."""
    return " ".join(str(error).split()) or repr(error)


def brief(error: BaseException) -> str:
    """The kind of a library's error and the beginning of what it says, on one line."""
    return f"{type(error).__name__}: {one_line(error)[:300]}"


def some(names: Sequence[str], most: int = 8, what: str = "") -> str:
    """Names in a line: of more than `most` the first, and how many more of what there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more{what}" if more > 0 else "")


def printable(text: str) -> str:
    r"""The text on one line, without what would steer a terminal; that is escaped, as `\n`."""
    if text.isprintable():
        return text
    return "".join(
        each.encode("unicode_escape").decode() if unicodedata.category(each) in _STEERING else each
        for each in text
    )
