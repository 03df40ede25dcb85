"""Predictions as rows: CSV, JSON lines, or a table on a terminal.

The same columns everywhere: `path`, `class`, `probability`, for the next ones of the most probable
classes `class_2`, `probability_2` and so on, `label` where it is known, and `error`.
"""

import contextlib
import csv
import dataclasses
import io
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, Protocol

import numpy as np

from jaxtrain.errors import CheckpointError, UsageError
from jaxtrain.files import behind_links, beside, temporary

_SUFFIXES: Final = (".csv", ".jsonl")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """What the model says of one image.

    Attributes:
        path: its file, or where it is in one, as in `digits.npy[3]`.
        classes: names of the most probable classes, the first one first; none if `error` is set.
        probabilities: float32 of each.
        label: name of the true class; None: not known.
        error: why there is no answer, in one line; empty if there is one.
    """

    path: str
    classes: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    label: str | None = None
    error: str = ""


class RowText(Protocol):
    """A way to write rows; its text can be encoded as UTF-8, whatever bytes a file's name holds."""

    @property
    def head(self) -> str:
        """What comes before the rows, with its line end; may be empty."""

    def text(self, rows: Iterable[Row]) -> str:
        """The lines of some rows."""


class CsvText:
    r"""CSV as RFC 4180 has it: a header, CRLF, quotes where they are needed.

    A probability is the shortest number that is the same float32. What is no UTF-8 in a path is
    written as `\udcXX`, XX being the byte.

    Args:
        top_k: how many classes a row names.
        with_label: whether there is a column for the true class.
    """

    def __init__(self, *, top_k: int, with_label: bool):
        self._top_k = top_k
        self._with_label = with_label

    @property
    def head(self) -> str:
        """The header."""
        label = ["label"] if self._with_label else []
        return csv_lines([["path", *titles(self._top_k), *label, "error"]])

    def text(self, rows: Iterable[Row]) -> str:
        """A line a row, or more where a path has line ends in it."""
        return csv_lines(map(self._fields, rows))

    def _fields(self, row: Row) -> list[str]:
        label = [row.label or ""] if self._with_label else []
        numbers = [repr(float32(each)) for each in row.probabilities]
        return [row.path, *paired(row.classes, numbers, self._top_k), *label, row.error]


class JsonText:
    """JSON lines: an object a row.

    `class` and `probability` are null where there is an error; `top` lists all classes that the row
    names, each with its probability; `label` and `error` are there only where they are known.
    Probabilities and odd bytes are as in `CsvText`.
    """

    head = ""

    def text(self, rows: Iterable[Row]) -> str:
        """A line a row."""
        lines = (json.dumps(_object(row), allow_nan=False, ensure_ascii=False) for row in rows)
        return "".join(f"{_encodable(line)}\n" for line in lines)


def stdout_text(*, width: int | None, top_k: int, class_names: Iterable[str]) -> RowText:
    """How rows are written to stdout: as a table for a person, as CSV for a program.

    Args:
        width: cells of a line where stdout is a terminal; None: it is none.
        top_k: how many classes a row names.
        class_names: those that there are.
    """
    if width is None:
        return CsvText(top_k=top_k, with_label=False)
    from jaxtrain.report.table import TableText  # noqa: PLC0415 - loads rich

    return TableText(width=width, top_k=top_k, class_names=class_names)


def check_rows_file(path: Path) -> None:
    """Finds before the work what `open_rows` would find after it.

    Raises:
        UsageError: the name does not end in .csv or .jsonl, or no file can be written there.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"{path} must end in .csv or .jsonl, which says how rows are written")
    if os.path.isdir(path):
        raise UsageError(f"{path} is a folder; name a file for the rows")
    if os.path.exists(path) and not os.path.isfile(path):
        raise UsageError(f"{path} is no regular file; name one for the rows")
    place = behind_links(path)
    try:
        if stat.S_ISLNK(os.lstat(place).st_mode):
            raise UsageError(f"{path} is a link that leads in a circle; name a file for the rows")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; name another") from error
    folder = place.parent
    if not os.path.isdir(folder):
        raise UsageError(f"{path} cannot be written: there is no folder {folder}; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{path} cannot be written: {folder} is not writable; choose another")


class RowFile:
    """Rows on their way into a file."""

    def __init__(self, path: Path, file: IO[bytes], text: RowText):
        self._path = path
        self._file = file
        self._text = text
        self._write(text.head)

    def write(self, *rows: Row) -> None:
        """Writes rows.

        Raises:
            CheckpointError: the disk is full, or the like.
        """
        self._write(self._text.text(rows))

    def _write(self, text: str) -> None:
        with _explained(self._path):
            self._file.write(text.encode())


@contextlib.contextmanager
def open_rows(path: Path, *, top_k: int, with_label: bool = False) -> Iterator[RowFile]:
    """A file of rows: CSV or JSON lines, as its name ends in .csv or .jsonl.

    It is written beside its place, and takes that, and that of an older file, once the `with` block
    ends; if that ends by an exception nothing is left.

    Args:
        path: the file.
        top_k: how many classes a row names.
        with_label: whether rows have labels.

    Raises:
        UsageError: as for `check_rows_file`.
        CheckpointError: the file cannot be written for another reason, such as a full disk.
    """
    check_rows_file(path)
    path = behind_links(path)
    is_csv = path.suffix.lower() == ".csv"
    text: RowText = CsvText(top_k=top_k, with_label=with_label) if is_csv else JsonText()
    with temporary(beside(path)) as place:
        file = _opened(path, place)
        try:
            yield RowFile(path, file, text)
            with _explained(path):
                file.flush()
                os.fsync(file.fileno())
        finally:
            with contextlib.suppress(OSError):  # told by the flush before, if it matters
                file.close()
        with _explained(path):
            os.replace(place, path)


def _opened(path: Path, place: Path) -> IO[bytes]:
    try:
        return open(place, "wb")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; name another") from error


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror}; make room, then run the same command again"
        ) from error


def titles(top_k: int) -> list[str]:
    """What the classes that a row names, and their probabilities, are called."""
    names = ["class", "probability"]
    for rank in range(2, top_k + 1):
        names += [f"class_{rank}", f"probability_{rank}"]
    return names


def paired(classes: Iterable[str], numbers: Iterable[str], top_k: int) -> list[str]:
    """A class, its number, the next class, and so on; empty where there is none."""
    cells = [cell for pair in zip(classes, numbers, strict=True) for cell in pair]
    return cells + [""] * (2 * top_k - len(cells))


def _object(row: Row) -> Mapping[str, Any]:
    top = [
        {"class": name, "probability": float32(probability)}
        for name, probability in zip(row.classes, row.probabilities, strict=True)
    ]
    first = top[0] if top else {"class": None, "probability": None}
    said = {"path": row.path, **first, "top": top}
    if row.label is not None:
        said["label"] = row.label
    if row.error:
        said["error"] = row.error
    return said


def float32(value: float) -> float:
    """The number with the fewest digits that is the same float32."""
    return float(str(np.float32(value)))


def csv_lines(rows: Iterable[list[str]]) -> str:
    """Lines of CSV as `CsvText` has them."""
    content = io.StringIO()
    csv.writer(content, lineterminator="\r\n").writerows(rows)
    return _encodable(content.getvalue())


def _encodable(text: str) -> str:
    """Escapes what Python makes of bytes in a file's name that are no UTF-8."""
    return text.encode(errors="backslashreplace").decode()
