"""The texts of flags to paths, names and numbers, or to what is wrong with them."""

from pathlib import Path

from jaxtrain import files
from jaxtrain.config import parse_number
from jaxtrain.errors import UsageError


def folder(text: str | None) -> files.AnyPath | None:
    """The path of a folder; a bucket is asked now whether it is there, before anything slow."""
    if text is None:
        return None
    return files.place(text) if "://" in text else Path(text).expanduser()


def picture(flag: str, text: str | None) -> Path | None:
    """The file of a picture, which need not be there."""
    path = file_for(flag, text)
    if path is not None and path.suffix.lower() != ".png":
        raise UsageError(f"--{flag}={text} must be a file that ends in .png")
    return path


def file_for(flag: str, text: str | None) -> Path | None:
    """A file to write, which need not be there; its folder must be."""
    if text is None:
        return None
    path = Path(text).expanduser()
    if "://" in text:
        raise UsageError(f"--{flag}={text} must be a local file")
    if path.is_dir():
        raise UsageError(f"--{flag}={text} is a folder; give a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"--{flag}={text}: there is no folder {path.parent}; make it first")
    return path


def names(flag: str, text: str | None) -> tuple[str, ...] | None:
    """Names with commas between them, each once."""
    if text is None:
        return None
    parts = tuple(part.strip() for part in text.split(","))
    if "" in parts or len(set(parts)) < len(parts):
        raise UsageError(f"--{flag}={text} must be names with commas between them, each once")
    return parts


def whole(flag: str, text: str | None, least: int) -> int | None:
    """A whole number, `least` or more."""
    if text is None:
        return None
    number = parse_number(text)
    if not isinstance(number, int) or number < least:
        raise UsageError(f"--{flag}={text} must be a whole number, {least} or more")
    return number
