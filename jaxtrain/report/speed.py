"""How fast a run trains, with compiling, evaluating and saving taken out of the time."""

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterator

# Reports that come in a burst (the last few steps in flight are fetched at once) would give a
# speed of nothing but noise; a speed is always over at least this long.
SHORTEST_SECONDS = 0.1


@dataclasses.dataclass(frozen=True)
class _Mark:
    """Step `step` was finished after `seconds` of training."""

    step: int
    seconds: float


class Speed:
    """A clock that stands still while the run is paused.

    A report of step s may come while later steps are in flight already: s counts as finished when
    its report comes, and images are counted from report to report, so that images and seconds
    always belong together.

    Args:
        batch_size: images a step.
        clock: seconds, from anywhere on.
    """

    def __init__(self, batch_size: int, clock: Callable[[], float]) -> None:
        self._batch_size = batch_size
        self._clock = clock
        self._pauses = 0
        self._paused_at = 0.0
        self._paused_seconds = 0.0
        self._compile_seconds = 0.0
        self.start(0)

    def start(self, step: int) -> None:
        """Counts from now on, and from the finished step `step` on."""
        self._started = self._clock()
        self._paused_at = self._started
        self._paused_seconds = self._compile_seconds = 0.0
        self._first = self._last = _Mark(step, 0.0)
        self._marks = collections.deque([self._first])

    @contextlib.contextmanager
    def paused(self, *, compiling: bool) -> Iterator[None]:
        """Stops the clock while inside. Pauses may be nested."""
        entered = self._clock()
        if self._pauses == 0:
            self._paused_at = entered
        self._pauses += 1
        try:
            yield
        finally:
            now = self._clock()
            self._pauses -= 1
            if self._pauses == 0:
                self._paused_seconds += now - self._paused_at
            if compiling:
                self._compile_seconds += now - max(entered, self._started)

    def report(self, step: int) -> float | None:
        """Counts step `step` as finished now.

        Returns:
            Images a second since the report before, or over the last 0.1 s if that is longer;
            None if no time has passed.
        """
        self._last = _Mark(step, self._seconds_now())
        self._marks.append(self._last)
        limit = self._last.seconds - SHORTEST_SECONDS
        while self._marks[1].seconds <= limit:
            self._marks.popleft()
        return self._rate(self._marks[0])

    @property
    def training_seconds(self) -> float:
        """Seconds of training, pauses left out, from the start to the last report."""
        return self._last.seconds

    @property
    def images_per_second_overall(self) -> float | None:
        """Images from the start to the last report, over `training_seconds`."""
        return self._rate(self._first)

    def seconds_left(self, step: int, total_steps: int) -> float | None:
        """Seconds that the steps after `step` will take at the pace so far.

        Evaluations and saves are in the pace, since they will come again; compiling is not.
        """
        done = step - self._first.step
        elapsed = self._clock() - self._started - self._compile_seconds
        return elapsed / done * (total_steps - step) if done > 0 else None

    def _seconds_now(self) -> float:
        now = self._paused_at if self._pauses else self._clock()
        return now - self._started - self._paused_seconds

    def _rate(self, since: _Mark) -> float | None:
        seconds = self._last.seconds - since.seconds
        return (self._last.step - since.step) * self._batch_size / seconds if seconds > 0 else None
