"""A list of images: CSV or JSON lines with a column of paths and one of labels."""

import collections
import csv
import functools
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from jaxtrain.config.schema import DataConfig
from jaxtrain.data.own.found import SPLIT_NAMES, Found, Listed, normal
from jaxtrain.errors import UsageError

_JSON_SUFFIXES: Final = (".jsonl", ".ndjson", ".json")
_DELIMITERS: Final = ",\t;|"
_NUMBER: Final = re.compile(r"-?(0|[1-9]\d{0,17})")  # 01 is a name

Rows = Iterator[tuple[int, Mapping[str, Any]]]  # the line that each ends in, from 1, and its fields


def read_table(config: DataConfig, path: Path) -> Found:
    """Reads a list of images with labels.

    A file that ends in .jsonl, .ndjson or .json has a JSON object a line. Any other one is CSV,
    with a header, whose delimiter (comma, tab, semicolon or bar) its header tells.

    Args:
        config: names of the columns.
        path: the file, from whose folder relative paths count. UTF-8.

    Raises:
        UsageError: it cannot be read, or a row of it is of no use; names the line.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UsageError(f"data.path={path} is no regular file; copy the list into one")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(
            f"data.path={path} cannot be read: {error.strerror}; data.source=csv needs a CSV or "
            "JSON lines file there"
        ) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}, line {line}, is not UTF-8; save the list as UTF-8") from error
    splits: dict[str, Listed] = {}
    numbers = True
    seen: dict[str, str] = {}
    root = _Root(path.parent)
    for line, row in _rows(config, path, text):
        place = f"{path}, line {line}"
        image = _text(row.get(config.path_column), f"{place}: column {config.path_column}")
        image = root.path_of(image, place)
        label = _text(row.get(config.label_column), f"{place}: column {config.label_column}")
        label = normal(label)
        if seen.setdefault(image, label) != label:
            raise UsageError(
                f"{place}: {image} is labelled {label!r}, but {seen[image]!r} in a line before; "
                "keep one of them"
            )
        numbers = numbers and _NUMBER.fullmatch(label) is not None
        split = _split_of(config, row, place)
        listed = splits.setdefault(split, Listed([], []))
        listed.paths.append(image)
        listed.labels.append(label)
    if not splits:
        raise UsageError(f"{path} lists no images; add a line for each one")
    notes = _notes(splits)
    # Other lists in the folder may name other files.
    return Found(path.parent, splits, numbers, origin=str(path), notes=notes, complete=False)


def _rows(config: DataConfig, path: Path, text: str) -> Rows:
    if path.suffix.lower() in _JSON_SUFFIXES:
        return _json_rows(config, path, text)
    return _csv_rows(config, path, text)


def _csv_rows(config: DataConfig, path: Path, text: str) -> Rows:
    head = text.partition("\n")[0]
    delimiter = max(_DELIMITERS, key=head.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_columns(config, path, header)
        for fields in reader:
            if not any(fields):
                continue
            if len(fields) != len(header):
                raise UsageError(
                    f"{path}, line {reader.line_num}, has {len(fields)} fields, but the header "
                    f"{len(header)}; mend it, with quotes around a field that holds {delimiter!r}"
                )
            yield reader.line_num, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise UsageError(f"{path}, line {reader.line_num}: {error}; mend it") from error


def _json_rows(config: DataConfig, path: Path, text: str) -> Rows:
    # Not `splitlines`, which parts lines where JSON does not.
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        try:
            row = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"{path}, line {line}, is no JSON: {error}; write an object a line"
            ) from error
        if not isinstance(row, dict):
            raise UsageError(f"{path}, line {line}, is no JSON object; write one a line")
        _check_columns(config, path, list(row), line)
        yield line, row


def _check_columns(
    config: DataConfig, path: Path, there: list[str], line: int | None = None
) -> None:
    place = str(path) if line is None else f"{path}, line {line}"
    for key in ("path_column", "label_column", "split_column"):
        name = getattr(config, key)
        optional = key == "split_column" and name == getattr(DataConfig(), key)
        count = there.count(name)
        if count == 1 or (optional and count == 0):
            continue
        shown = ", ".join(there) or "none"
        what = "no column" if count == 0 else f"{count} columns"
        raise UsageError(
            f"{place} has {what} {name!r}; its columns: {shown}; set data.{key} to one of them"
        )


def _text(value: Any, place: str) -> str:
    """A path, or a label as a name or a whole number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise UsageError(f"{place} is {json.dumps(value)}, but must be a text or a whole number")
    if not value.strip():
        raise UsageError(f"{place} is empty; fill it, or drop the line")
    if "\0" in value:
        raise UsageError(f"{place} has a NUL in it; mend it")
    return value.strip()


class _Root:
    """The folder that the paths of a list count from, known however it is spelled.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: Path):
        self._real = os.path.realpath(folder)
        # Many images have the same folder.
        self._real_of: Callable[[str], str] = functools.cache(os.path.realpath)
        self._from_here = functools.cache(self._without_root)

    def path_of(self, image: str, place: str) -> str:
        """The path of an image, written in one way only, from the root where it lies below that.

        Raises:
            UsageError: no file can have that name; it names `place`.
        """
        try:
            os.fsencode(image)
        except UnicodeEncodeError:
            raise UsageError(
                f"{place}: {image!r} is no name that a file can have; mend it"
            ) from None
        path = os.path.normpath(image)
        if os.pardir in image.split(os.sep):
            # Behind a link it leads elsewhere than to the name before it.
            folder, name = os.path.split(os.path.join(self._real, image))
            real = self._real_of(folder)
            if real != self._real_of(os.path.dirname(os.path.join(self._real, path))):
                path = os.path.join(real, name)
        if not os.path.isabs(path) and not path.startswith(os.pardir):
            return path
        folder, name = os.path.split(os.path.normpath(os.path.join(self._real, path)))
        below = self._from_here(folder)
        return path if below is None else os.path.normpath(os.path.join(below, name))

    def _without_root(self, folder: str) -> str | None:
        """The path of an absolute folder from the root; None: it is not below that."""
        for parent in (*map(str, reversed(Path(folder).parents)), folder):
            if self._real_of(parent) == self._real:
                return os.path.relpath(folder, parent)
        return None


def _split_of(config: DataConfig, row: Mapping[str, Any], place: str) -> str:
    if config.split_column not in row:
        return "train"
    name = _text(row[config.split_column], f"{place}: column {config.split_column}")
    return SPLIT_NAMES.get(name.lower(), name)


def _notes(splits: Mapping[str, Listed]) -> list[str]:
    """Files that are listed more than once."""
    splits_of: dict[str, list[str]] = collections.defaultdict(list)
    for split, listed in splits.items():
        for path in listed.paths:
            splits_of[path].append(split)
    twice = {path: names for path, names in splits_of.items() if len(names) > 1}
    if not twice:
        return []
    first, names = next(iter(twice.items()))
    return [
        f"listed more than once: {len(twice):,} files, first {first} (in {' and '.join(names)})"
    ]
