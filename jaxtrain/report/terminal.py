"""The console on a terminal: a bar that stays at the bottom, with all lasting lines above it."""

import dataclasses
import io
import math
import sys
from collections.abc import Callable
from typing import TextIO, cast

import rich.console
import rich.file_proxy
import rich.segment
import rich.text

from jaxtrain.errors import printable
from jaxtrain.report.console import (
    Metrics,
    Progress,
    duration,
    evaluation_line,
    loss_text,
    percent,
    speed_text,
    step_text,
    train_line,
)

# Redrawing takes 0.2 ms of the training thread, since there is no other thread to do it.
REDRAW_SECONDS = 0.1
# A pause that is over sooner would only flicker.
LONG_PAUSE_SECONDS = 0.5
SHORTEST_BAR, LONGEST_BAR = 10, 40
GAP_TEXT = rich.text.Text("  ")

Piece = tuple[str, str]
"""Text and its style."""


def _control(code: str) -> rich.segment.Segments:
    """A terminal's control sequence that rich has no name for."""
    bell = [(rich.segment.ControlType.BELL,)]  # Any name marks the segment as a control.
    return rich.segment.Segments([rich.segment.Segment(code, None, bell)])


# To the end of the screen: a terminal made narrower may have broken the bar into many lines. In two
# parts, as tmux saves a copy of all that is erased from a screen's first cell on.
ERASE = _control("\r\x1b[K\x1b[C\x1b[J\r")
# While a window is being resized the width that we know is an old one. What does not fit must not
# go on in the next line, or the cursor would not find back to where the bar begins.
WRAP_OFF = _control("\x1b[?7l")


@dataclasses.dataclass(frozen=True)
class _Batches:
    what: str
    done: int
    total: int
    unit: str


class TerminalConsole(rich.console.RenderHook):
    """A console for a terminal that can move its cursor.

    It draws only when it is called (a thread that draws would take time from training) and at most
    ten times a second. Between two drawings the cursor rests where the bar begins: a terminal that
    is made narrower breaks the bar into several lines, and all of them come after the cursor, where
    the next drawing erases them. The cursor stays visible, so no way to die can leave it hidden.

    Args:
        stream: the terminal.
        clock: seconds, from anywhere on.
    """

    def __init__(self, stream: io.TextIOBase, clock: Callable[[], float]) -> None:
        self.due = -math.inf
        self._clock = clock
        self._console = rich.console.Console(
            file=cast(TextIO, stream), force_terminal=True, highlight=False
        )
        self._unicode = self._console.encoding.startswith("utf")
        self._progress: Progress | None = None
        self._unshown: Progress | None = None
        self._pause: str | None = None
        self._paused_at = 0.0
        self._batches: _Batches | None = None
        self._closed = False
        self._console.push_render_hook(self)
        # What others write, warnings above all, is to go above the bar, not into it.
        self._stderr = sys.stderr
        sys.stderr = cast(TextIO, rich.file_proxy.FileProxy(self._console, self._stderr))

    def process_renderables(
        self, renderables: list[rich.console.ConsoleRenderable]
    ) -> list[rich.console.ConsoleRenderable]:
        """Puts all that is printed in the place of the bar, and the bar below it."""
        lines = self._lines()
        bar = rich.text.Text("\n", end="").join(lines)
        back = _control("\r" + "\x1b[A" * (len(lines) - 1) + "\x1b[?7h")
        return [ERASE, *renderables, WRAP_OFF, bar, back]

    def message(self, text: str) -> None:
        """Prints a line above the bar: never broken, so that it can be copied."""
        self._console.print(rich.text.Text(printable(text)), soft_wrap=True)

    def train(self, progress: Progress) -> None:
        """Prints the last report, since the bar will go; the bar shows all others."""
        self._unshown = progress
        if progress.step >= progress.total_steps:
            self._print_unshown()

    def evaluation(
        self, step: int, split: str, metrics: Metrics, total_steps: int | None = None
    ) -> None:
        """Prints a line above the bar."""
        self._unshown = None  # what came before it would come after it
        self._print(evaluation_line(step, split, metrics, total_steps), "bold")

    def tick(self, progress: Progress) -> None:
        """Redraws the bar."""
        self._progress = progress
        self._redraw()

    def pause(self, what: str) -> None:
        """Redraws the bar, due or not: there may be no other chance for minutes."""
        self._pause, self._paused_at = what, self._clock()
        self._redraw()

    def batches(self, what: str, done: int, total: int, unit: str = "batches") -> None:
        """Draws a second bar below, once the pause has become a long one."""
        now = self._clock()
        if now >= self.due and now >= self._paused_at + LONG_PAUSE_SECONDS:
            self._batches = _Batches(what, done, total, unit)
            self._redraw()

    def unpause(self) -> None:
        """Takes the second bar away at the next redraw."""
        self._pause = self._batches = None

    def close(self) -> None:
        """Takes the bar away, and prints the last training report unless it is there already."""
        if self._closed:
            return
        self._closed = True
        self._progress = self._batches = None
        self._redraw()
        self._console.pop_render_hook()
        sys.stderr = self._stderr
        self._print_unshown()

    def _print_unshown(self) -> None:
        if self._unshown is not None:
            self._print(train_line(dataclasses.replace(self._unshown, seconds_left=None)))
            self._unshown = None

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(rich.text.Text(printable(text), style))

    def _redraw(self) -> None:
        self._console.print(end="")
        self.due = self._clock() + REDRAW_SECONDS

    def _lines(self) -> list[rich.text.Text]:
        # One column less than there is: a full line makes some terminals go on to the next.
        width = self._console.width - 1
        lines = []
        if self._progress is not None:
            choices = _train_choices(self._progress, self._pause)
            done, total = self._progress.step, self._progress.total_steps
            lines.append(self._line(width, done, total, choices))
        if self._batches is not None:
            done, total = self._batches.done, self._batches.total
            choices = [
                [(f"{done:,}/{total:,} {self._batches.unit}", ""), (self._batches.what, "cyan")]
            ]
            lines.append(self._line(width, done, total, choices))
        return lines

    def _line(
        self, width: int, done: int, total: int, choices: list[list[Piece]]
    ) -> rich.text.Text:
        """The first choice with room for a bar, else the first that fits, else the last, cut."""
        texts = [GAP_TEXT.join(rich.text.Text(*piece) for piece in pieces) for pieces in choices]
        for text in texts:
            room = width - len(text) - len(GAP_TEXT)
            if room >= SHORTEST_BAR:
                bar = self._bar(min(room, LONGEST_BAR), done / max(total, 1))
                return rich.text.Text.assemble(bar, GAP_TEXT, text, no_wrap=True)
        fitting = [text for text in texts if len(text) <= width]
        line = (fitting or texts[-1:])[0]
        line.truncate(max(width, 1))
        return line

    def _bar(self, width: int, share: float) -> rich.text.Text:
        full, rest = ("━", "─") if self._unicode else ("=", "-")
        done = int(width * min(share, 1.0))
        return rich.text.Text.assemble((full * done, "green"), (rest * (width - done), "dim"))


def _train_choices(progress: Progress, pause: str | None) -> list[list[Piece]]:
    """The words beside the bar: in full, abbreviated, short and shortest."""
    step = (step_text(progress.step, progress.total_steps), "bold")
    choices = [[step], [step], [step], [step]]
    if progress.loss is not None:
        loss, accuracy = loss_text(progress.loss), percent(progress.accuracy)
        labels = [("loss ", "accuracy "), ("loss ", "acc "), ("loss ", ""), ("", "")]
        for pieces, (loss_label, accuracy_label) in zip(choices, labels, strict=True):
            pieces += [(loss_label + loss, ""), (accuracy_label + accuracy, "")]
    if pause is not None:
        for pieces in choices:
            pieces.append((pause, "cyan"))
        return choices
    if progress.images_per_second is not None:
        speed = speed_text(progress.images_per_second)
        choices[0].append((f"{speed} {progress.noun}/s", ""))
        choices[1].append((f"{speed} img/s", ""))
    if progress.seconds_left is not None:
        left = duration(progress.seconds_left)
        for pieces, label in zip(choices, (" left", " left", "", ""), strict=True):
            pieces.append((left + label, "dim"))
    return choices
