"""A terminal's screen, for the few control sequences that the console sends."""

import io
import re

TOKENS = re.compile(r"\x1b\[(\??)(\d*(?:;\d+)*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)")


class Screen(io.StringIO):
    """A stream that is a terminal; `lines` is what a person sees, all that scrolled away too."""

    encoding = "utf-8"

    def __init__(self, width):
        super().__init__()
        self.width = width
        self.writes = 0

    def isatty(self):
        return True

    def write(self, text):
        self.writes += 1
        return super().write(text)

    @property
    def lines(self):
        return [line.rstrip() for line in self._play()[0]]

    @property
    def cursor(self):
        """(row, column)"""
        return self._play()[1:]

    def _play(self):
        rows, row, column, wraps = [""], 0, 0, True
        for private, numbers, letter, back, down, text in TOKENS.findall(self.getvalue()):
            if back:
                column = 0
            elif down:
                row, column = row + 1, 0
                rows += [""] * (row + 1 - len(rows))
            elif text:
                assert wraps or column + len(text) < self.width, f"cut: {text!r}"
                rows[row] = (
                    rows[row][:column].ljust(column) + text + rows[row][column + len(text) :]
                )
                column += len(text)
            elif private:
                assert (numbers, letter) in {("7", "l"), ("7", "h")}, f"?{numbers}{letter}"
                wraps = letter == "h"
            elif letter == "K":
                rows[row] = rows[row][:column]
            elif letter == "J":
                rows[row] = rows[row][:column]
                del rows[row + 1 :]
            elif letter == "C":
                column += int(numbers or 1)
            elif letter == "A":
                row -= int(numbers or 1)
                assert row >= 0
            else:
                assert letter == "m", letter
        assert wraps
        return rows, row, column
