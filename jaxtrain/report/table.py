"""Predictions as a table on a terminal."""

from collections.abc import Iterable
from typing import Final

from rich.cells import cell_len, get_character_cell_size

from jaxtrain.errors import printable
from jaxtrain.report.console import percent
from jaxtrain.report.rows import Row, float32, paired, titles

_SHORTEST_PATH: Final = 20  # cells of its column
_LONGEST_CLASS: Final = 30
_GAP: Final = "  "
_CUT: Final = "..."


class TableText:
    r"""An aligned table.

    The paths' column is as wide as the first rows that are written need, if the terminal is; a
    longer path is cut in its middle. Where the terminal is so narrow that it wraps lines anyway, a
    path may take one of its own. What does not print is escaped, as `\n`.

    Args:
        width: cells of a line on the terminal.
        top_k: how many classes a row names.
        class_names: those that there are.
    """

    head = ""

    def __init__(self, *, width: int, top_k: int, class_names: Iterable[str]):
        longest = max((cell_len(printable(name)) for name in class_names), default=0)
        self._top_k = top_k
        self._titles = titles(top_k)
        class_width = max(len(self._titles[-2]), min(longest, _LONGEST_CLASS))
        self._widths = [
            len(title) if title.startswith("probability") else class_width for title in self._titles
        ]
        # One cell less than there is: a full line makes some terminals go on to the next.
        left = width - 1 - sum(len(_GAP) + each for each in self._widths)
        self._longest_path = left if left >= _SHORTEST_PATH else max(width - 1, _SHORTEST_PATH)
        self._path_width: int | None = None

    def text(self, rows: Iterable[Row]) -> str:
        """A line a row; the titles before the first one."""
        rows = list(rows)
        lines = []
        if self._path_width is None:
            needed = [_SHORTEST_PATH, *(cell_len(printable(row.path)) for row in rows)]
            self._path_width = min(max(needed), self._longest_path)
            lines.append(self._line("path", self._titles))
        lines += map(self._row, rows)
        return "".join(f"{line.rstrip()}\n" for line in lines)

    def _row(self, row: Row) -> str:
        if row.error:
            return self._line(row.path, []) + f"{_GAP}error: {printable(row.error)}"
        numbers = [percent(float32(each)) for each in row.probabilities]
        return self._line(row.path, paired(row.classes, numbers, self._top_k))

    def _line(self, path: str, cells: list[str]) -> str:
        assert self._path_width is not None
        parts = [_fitted(path, self._path_width)]
        for rank, (cell, width) in enumerate(zip(cells, self._widths, strict=False)):
            parts.append(cell.rjust(width) if rank % 2 else _fitted(cell, width))
        return _GAP.join(parts)


def _fitted(text: str, cells: int) -> str:
    """The text on one line, filled up or cut in its middle, so that it takes so many cells."""
    text = printable(text)
    if (length := cell_len(text)) > cells:
        room = cells - len(_CUT)
        end = _beginning(reversed(text), room - room // 3)[::-1]
        text = f"{_beginning(text, room // 3)}{_CUT}{end}"
        length = cell_len(text)
    return text + " " * (cells - length)


def _beginning(text: Iterable[str], cells: int) -> str:
    taken = ""
    for each in text:
        cells -= get_character_cell_size(each)
        if cells < 0:
            break
        taken += each
    return taken
