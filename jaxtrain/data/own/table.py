"""A list of images: CSV or JSON lines with a column of paths and one of labels."""

import collections
import csv
import functools
import io
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from jaxtrain.config.schema import DataConfig
from jaxtrain.data.local import refuse_remote
from jaxtrain.data.own.found import SPLIT_NAMES, Found, Listed, normal
from jaxtrain.errors import UsageError

_JSON_SUFFIXES: Final = (".jsonl", ".ndjson", ".json")
_DELIMITERS: Final = ",\t;|"
_NUMBER: Final = re.compile(r"-?(0|[1-9]\d{0,17})")  # 01 is a name

# In bytes: a result's file is named by the split, and no file's name has more than 255.
_LONGEST_SPLIT: Final = 100

Rows = Iterator[tuple[int, Mapping[str, Any]]]  # the line that each begins in, from 1; its fields


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
    try:
        if not stat.S_ISREG(mode := path.stat().st_mode) and not stat.S_ISDIR(mode):
            raise UsageError(f"data.path={path} is no regular file; copy the list into one")
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
    seen: dict[str, _Row] = {}
    named: dict[bool, int] = {}  # the first line with a split, and the first one without
    root = _Root(path.parent)
    for line, row in _rows(config, path, text):
        place = f"{path}, line {line}"
        image = _text(row.get(config.path_column), f"{place}: column {config.path_column}")
        image = root.path_of(image, place)
        label = _text(row.get(config.label_column), f"{place}: column {config.label_column}")
        label = normal(label)
        first = seen.setdefault(root.real_path(image), _Row(line, image, label))
        if first.label != label:
            raise UsageError(
                f"{place}: {image} is labelled {label!r}, but {first.label!r} in line "
                f"{first.line}; keep one of them"
            )
        numbers = numbers and _NUMBER.fullmatch(label) is not None
        named.setdefault(config.split_column in row, line)
        split = _split_of(config, row, place)
        listed = splits.setdefault(split, Listed([], []))
        listed.paths.append(first.path)
        listed.labels.append(label)
    if not splits:
        raise UsageError(f"{path} lists no images; add a line for each one")
    if len(named) > 1:
        raise UsageError(
            f"{path}, line {named[False]} has no column {config.split_column!r}, but line "
            f"{named[True]} has; name a split in every line, or in none"
        )
    return Found(path.parent, splits, numbers, origin=str(path), notes=_notes(splits))


class _Row(NamedTuple):
    """Where a file is listed first, and how."""

    line: int
    path: str
    label: str


def _rows(config: DataConfig, path: Path, text: str) -> Rows:
    if path.suffix.lower() in _JSON_SUFFIXES:
        return _json_rows(config, path, text)
    return _csv_rows(config, path, text)


def _csv_rows(config: DataConfig, path: Path, text: str) -> Rows:
    head = re.search(r"\S.*", text)  # of the first line that is not blank
    delimiter = max(_DELIMITERS, key=(head[0] if head else "").count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    line = 1
    try:
        for fields in reader:
            if any(map(str.strip, fields)):
                if header is None:
                    header = [name.strip() for name in fields]
                    _check_columns(config, path, header)
                elif len(fields) != len(header):
                    raise UsageError(
                        f"{path}, line {line}, has {len(fields)} fields, but the header "
                        f"{len(header)}; mend it, with quotes around a field that holds "
                        f"{delimiter!r}"
                    )
                else:
                    yield line, dict(zip(header, fields, strict=True))
            line = reader.line_num + 1
    except csv.Error as error:
        if reader.line_num == line:
            raise UsageError(f"{path}, line {line}: {error}; mend it") from error
        raise UsageError(
            f"{path}, line {line}: a quote runs on to line {reader.line_num} ({error}); close it"
        ) from error
    if header is None:
        _check_columns(config, path, [])


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
        self._real_folder = functools.cache(
            lambda folder: self._real_of(os.path.join(self._real, folder))
        )
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
        refuse_remote(image, os.path.join(self._real, path), what=f"{place}: {image}")
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

    def real_path(self, path: str) -> str:
        """What tells a file from others: its absolute path, with no link to its folder."""
        folder, name = os.path.split(path)
        return os.path.join(self._real_folder(folder), name)

    def _without_root(self, folder: str) -> str | None:
        """The path of an absolute folder from the root; None: it is not below that."""
        for parent in (*map(str, reversed(Path(folder).parents)), folder):
            if self._real_of(parent) == self._real:
                return os.path.relpath(folder, parent)
        return None


def _split_of(config: DataConfig, row: Mapping[str, Any], place: str) -> str:
    if config.split_column not in row:
        return "train"
    place = f"{place}: column {config.split_column}"
    name = _text(row[config.split_column], place)
    if (known := SPLIT_NAMES.get(name.lower())) is not None:
        return known
    if (why := _no_split_name(name)) is not None:
        raise UsageError(f"{place} is {name!r}, which {why}; rename it")
    return name


@functools.cache
def _no_split_name(name: str) -> str | None:
    """Why no split can be called that: it could not be asked for, or no file be named by it."""
    if "+" in name:
        return "has a + in it, which puts splits together"
    if "/" in name:
        return "has a / in it"
    try:
        size = len(os.fsencode(name))
    except UnicodeEncodeError:
        return "is no name that a file can have"
    if name in (os.curdir, os.pardir):
        return "is no name that a file can have"
    return None if size <= _LONGEST_SPLIT else f"has {size} bytes, more than {_LONGEST_SPLIT}"


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
