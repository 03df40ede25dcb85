"""What the processes of a run say of each other's errors and values."""

import itertools
import re

from jaxtrain.errors import JaxtrainError, one_line

# What an error says that may come from a process that is gone: its loss is then the news.
ECHO = re.compile(
    r"[Gg]loo|NCCL|[Ss]ocket closed|[Cc]onnection (closed|reset|refused)|[Cc]oordination|"
    r"[Bb]arrier|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED"
)
SHOWN_CHARACTERS, LONGEST_WORDS = 60, 300


def short(text: str | None, other: str | None) -> str:
    """A value, or of a long one the part around its first difference from the other."""
    if text is None:
        return "not there"
    if len(text) <= SHOWN_CHARACTERS:
        return repr(text)
    common = sum(1 for _ in itertools.takewhile(_equal, zip(text, other or "", strict=False)))
    start = max(0, min(common - SHOWN_CHARACTERS // 2, len(text) - SHOWN_CHARACTERS))
    end = start + SHOWN_CHARACTERS
    return f"{'...' if start else ''}{text[start:end]!r}{'...' if end < len(text) else ''}"


def _equal(pair: tuple[str, str]) -> bool:
    return pair[0] == pair[1]


def may_echo_a_loss(error: BaseException) -> bool:
    """Whether a library says something that may only follow from the loss of a process."""
    link: BaseException | None = error
    while link is not None:
        if not isinstance(link, JaxtrainError) and ECHO.search(str(link)):
            return True
        link = link.__cause__ or link.__context__
    return False


def last_words(error: BaseException) -> tuple[int, str]:
    """The status that this process will end with because of the error, and why."""
    if isinstance(error, JaxtrainError):
        return error.status, one_line(error)
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted"
    text = " ".join(str(error).split())[:LONGEST_WORDS]
    return 1, f"{type(error).__name__}: {text}: a fault of jaxtrain, see its output"


def sign(error: BaseException | None, index: int) -> None:
    """Makes an error say whose it is, unless it is the first process's."""
    if isinstance(error, JaxtrainError):
        error.process = index or None
    elif error is not None and index:
        error.add_note(f"in process {index}")
