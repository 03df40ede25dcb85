"""Words of this room's errors, which begin after the file's name; `loading` puts that first."""

from typing import Any

from jaxtrain.errors import UsageError

_LISTED = 5
_LONGEST = 100


def shown(*names: Any) -> str:
    """Names out of a file, which may hold anything, in one line: the first, and how many more."""
    texts = [ascii(str(name))[1:-1] for name in names[:_LISTED]]
    more = f" and {len(names) - _LISTED} others" if len(names) > _LISTED else ""
    return ", ".join(text[:_LONGEST] for text in texts) + more


def damaged(what: str) -> UsageError:
    """The error for a file that no program wrote, or not whole; `what` shows it."""
    return UsageError(f"is damaged or not whole ({what}); get it again")
