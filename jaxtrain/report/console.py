"""What a person reads while a run trains: one console for terminals, one for everything else."""

import dataclasses
import io
import math
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TextIO

from jaxtrain.errors import printable

# Where nobody watches, a log of a long run must stay short.
PLAIN_SECONDS = 10.0

Metrics = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run is. None: not known yet."""

    step: int
    total_steps: int
    noun: str = "images"
    loss: float | None = None
    accuracy: float | None = None
    images_per_second: float | None = None
    seconds_left: float | None = None


class Console(Protocol):
    """A place for a run's messages and progress."""

    due: float
    """The clock's time from which `tick` has something to do."""

    def message(self, text: str) -> None:
        """Shows a line that stays."""

    def train(self, progress: Progress) -> None:
        """Takes a training report."""

    def evaluation(
        self, step: int, split: str, metrics: Metrics, total_steps: int | None = None
    ) -> None:
        """Shows an evaluation's result, in a line that stays."""

    def tick(self, progress: Progress) -> None:
        """Shows how far the training is; called once `due`."""

    def pause(self, what: str) -> None:
        """Shows that the run does `what` instead of training."""

    def batches(self, what: str, done: int, total: int, unit: str = "batches") -> None:
        """Shows that `done` of `total` batches of `what` are done; called as often as one likes."""

    def unpause(self) -> None:
        """Shows that training goes on."""

    def close(self) -> None:
        """Leaves a clean line. Nothing may be shown afterwards; a second call does nothing."""


def open_console(stream: TextIO, clock: Callable[[], float]) -> Console:
    """Returns the console for `stream`: a live one for a terminal, else plain lines.

    Args:
        stream: where all text goes.
        clock: seconds, from anywhere on.
    """
    lasting = _Lasting(stream)
    if stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown"):
        from jaxtrain.report.terminal import TerminalConsole  # noqa: PLC0415 - loads rich

        return TerminalConsole(lasting, clock)
    return PlainConsole(lasting, clock)


class _Lasting(io.TextIOBase):
    """Passes text on to `stream`, until that is gone.

    A run must not end because nobody reads any more: the terminal was closed, or `head` had enough.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._gone = False
        encoding = getattr(stream, "encoding", None) or "utf-8"
        self._has_all = "±".encode(encoding, "ignore") != b""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def write(self, text: str) -> int:
        if not self._gone:
            try:
                self._stream.write(text if self._has_all else text.replace("±", "+-"))
                self._stream.flush()
            except OSError:
                self._gone = True
        return len(text)


class PlainConsole:
    """Whole lines only: for files, pipes and terminals that cannot move the cursor."""

    def __init__(self, stream: io.TextIOBase, clock: Callable[[], float]) -> None:
        self.due = math.inf
        self._stream = stream
        self._clock = clock
        self._next_train = -math.inf
        self._next_batches = math.inf
        self._unshown: Progress | None = None

    def message(self, text: str) -> None:
        """Writes a line."""
        self._stream.write(f"{printable(text)}\n")

    def train(self, progress: Progress) -> None:
        """Writes a line for the first report, the last one, and one every 10 s between."""
        now = self._clock()
        if now >= self._next_train or progress.step >= progress.total_steps:
            self._next_train = now + PLAIN_SECONDS
            self._unshown = None
            self.message(train_line(progress))
        else:
            self._unshown = progress

    def evaluation(
        self, step: int, split: str, metrics: Metrics, total_steps: int | None = None
    ) -> None:
        """Writes a line."""
        self._unshown = None  # what came before it would come after it
        self.message(evaluation_line(step, split, metrics, total_steps))

    def tick(self, progress: Progress) -> None:
        """Does nothing: lines come with the reports."""

    def pause(self, what: str) -> None:
        """Does nothing but remember when: only a long pause is worth a line."""
        self._next_batches = self._clock() + PLAIN_SECONDS

    def batches(self, what: str, done: int, total: int, unit: str = "batches") -> None:
        """Writes a line every 10 s."""
        if self._clock() >= self._next_batches:
            self._next_batches = self._clock() + PLAIN_SECONDS
            self.message(f"{what}  {done:,}/{total:,} {unit}")

    def unpause(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Writes the last training report, unless it or a later evaluation is there already."""
        if self._unshown is not None:
            self.message(train_line(dataclasses.replace(self._unshown, seconds_left=None)))
            self._unshown = None


def train_line(progress: Progress) -> str:
    """One training report as a line."""
    parts = [_step_and_split(step_text(progress.step, progress.total_steps), "train")]
    parts += [f"loss {loss_text(progress.loss)}", f"accuracy {percent(progress.accuracy)}"]
    if progress.images_per_second is not None:
        parts.append(f"{speed_text(progress.images_per_second)} {progress.noun}/s")
    if progress.seconds_left:
        parts.append(f"{duration(progress.seconds_left)} left")
    return "  ".join(parts)


def evaluation_line(step: int, split: str, metrics: Metrics, total_steps: int | None) -> str:
    """One evaluation's result as a line; those of one run, with its last step, line up."""
    steps = f"{step:,}" if total_steps is None else step_text(step, total_steps)
    parts = [_step_and_split(steps, split)]
    if "loss" in metrics:
        parts.append(f"loss {loss_text(metrics['loss'])}")
    if "accuracy" in metrics:
        parts.append(f"accuracy {percent(metrics['accuracy'])}")
    deviation = metrics.get("accuracy_deviation")
    if deviation is not None:
        parts[-1] += f" ± {100 * deviation:.2f}"
    if "top5_accuracy" in metrics:
        parts.append(f"top-5 {percent(metrics['top5_accuracy'])}")
    for which in ("raw", "ema"):
        if f"{which}_accuracy" in metrics:
            parts.append(f"({which} {percent(metrics[f'{which}_accuracy']).strip()})")
    if metrics.get("flip_average"):
        parts.append("with mirror images")
    if "replica" in metrics:
        parts.append(f"{metrics['replica']}")
    if "replicas" in metrics:
        parts.append(f"mean of {metrics['replicas']} replicas")
    count = metrics.get("count")
    if count is not None and not {"replica", "replicas"} & set(metrics):  # a line has its limits
        left_out = metrics.get("left_out")
        beside = f", {left_out:,.0f} left out" if left_out else ""
        parts.append(f"{count:,.0f} examples{beside}")
    return "  ".join(parts)


def step_text(step: int, total_steps: int) -> str:
    """The step and the total, of one width for the whole run."""
    total = f"{total_steps:,}"
    return f"{step:>{len(total)},}/{total}"


def _step_and_split(steps: str, split: str) -> str:
    return f"step {steps}  {split:5}"


def loss_text(value: float | None) -> str:
    """A loss in about four digits, of one width while it is in the usual range."""
    if value is None:
        return "nan"
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.3g}"


def percent(value: float | None) -> str:
    """A share as a percentage of one width below 100 %, and never rounded up to 100 %."""
    if value is None:
        return "nan"
    shown = f"{100 * value:5.2f}"
    return "99.99 %" if shown == "100.00" and value < 1 else f"{shown} %"


def speed_text(images_per_second: float) -> str:
    """A speed: whole images, or two digits where it is slow."""
    slow = images_per_second < 10
    return f"{images_per_second:.2g}" if slow else f"{images_per_second:,.0f}"


def duration(seconds: float) -> str:
    """Seconds as `0:07`, `1:02:03` or `2d 03:04:05`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
