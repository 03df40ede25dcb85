"""What the formats say of files that are missing or damaged."""

from pathlib import Path

from jaxtrain.errors import UsageError, brief


def refuse_missing(*paths: Path) -> None:
    """Refuses an export without one of these files.

    Raises:
        UsageError: there is one; names it.
    """
    for path in paths:
        if not path.is_file():
            raise UsageError(f"{path} is missing; export the model again")


def damaged(path: Path, error: Exception) -> UsageError:
    """What to raise for a file that its runtime cannot read."""
    return UsageError(f"{path} is damaged ({brief(error)}); export the model again")
