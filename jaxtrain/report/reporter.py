"""One face for all that a run reports: to its log, to TensorBoard and to a person."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TextIO

from jaxtrain.report.console import Progress, open_console
from jaxtrain.report.metrics_log import MetricsLog
from jaxtrain.report.several import replica_name, shown, spreads
from jaxtrain.report.speed import Speed

if TYPE_CHECKING:
    from jaxtrain.report.tensorboard import EventWriter


class BatchProgress(Protocol):
    """Takes how much of a pause is done. Costs about a microsecond unless a redraw is due."""

    def __call__(self, done: int, total: int) -> None:
        """Says that `done` of `total` batches are done."""


class TrainReport(NamedTuple):
    """What a report interval comes to.

    Attributes:
        loss: mean loss over the interval's examples; None: all its updates were skipped.
        accuracy: share of the interval's examples that were classified correctly, likewise.
        learning_rate: the rate of its last step.
        skipped: updates that were skipped, whose examples are in neither mean; None: none ever is.
    """

    loss: float | None
    accuracy: float | None
    learning_rate: float
    skipped: int | None = None


class Reporter:
    """Writes metrics.jsonl and TensorBoard events, and shows a person how a run goes.

    Use it in a `with`: leaving it, in whatever way, closes the files and leaves the terminal
    clean. Nothing is written before `start`, but messages are shown at once.

    Args:
        metrics_path: metrics.jsonl.
        tensorboard_dir: where the event files go; None writes none.
        total_steps: the run's last step.
        batch_size: images a step, over all devices, of one replica.
        noun: what examples are called, where they are no images.
        replicas: what each replica differs in, as `{"seed": 1}`; empty: there is one model.
        main: which of them is the run's model.
        stream: where text for people goes; None is stderr.
        clock: seconds, from anywhere on, for speeds.
        now: seconds since 1970, for the records.
    """

    def __init__(
        self,
        metrics_path: Path,
        tensorboard_dir: Path | None,
        *,
        total_steps: int,
        batch_size: int,
        noun: str = "images",
        replicas: Sequence[Mapping[str, float]] = (),
        main: int = 0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.perf_counter,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._log = MetricsLog(metrics_path)
        self._tensorboard_dir = tensorboard_dir
        self._events: list[EventWriter] = []
        self._replicas = replicas
        self._main = main
        self._said_to_skip: set[str] = set()
        self._total_steps = total_steps
        self._noun = noun
        self._step = 0
        self._loss: float | None = None
        self._accuracy: float | None = None
        self._images_per_second: float | None = None
        self._clock = clock
        self._now = now
        self._speed = Speed(batch_size, clock)
        self._console = open_console(sys.stderr if stream is None else stream, clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files and leaves the terminal clean; a second call does nothing."""
        self._console.close()
        self._log.close()
        for events in self._events:
            events.close()

    def message(self, text: str) -> None:
        """Shows a line that stays."""
        self._console.message(text)

    def start(self, step: int, *, evaluates: bool = False) -> None:
        """Brings all records to `step`, as if later steps had never been, and starts the clock.

        Args:
            step: finished updates to go on from; 0 for a new run.
            evaluates: whether that begins with an evaluation of `step`.

        Raises:
            UsageError: metrics.jsonl is damaged.
            CheckpointError: a record cannot be written.
        """
        self._log.resume(step, evaluates=evaluates)
        if self._tensorboard_dir is not None:
            # Here, as it takes 0.1 s to load and nothing else in this room needs it.
            from jaxtrain.report.tensorboard import EventWriter  # noqa: PLC0415

            run, began, lines = self._tensorboard_dir.parent.name, self._now(), self._log.read()
            if not self._replicas:
                self._events = [EventWriter(self._tensorboard_dir, lines, began, run)]
            for number, difference in enumerate(self._replicas):
                name = replica_name(difference)
                own = [line for line in lines if line.get("replica") == number]
                writer = EventWriter(self._tensorboard_dir / name, own, began, f"{run}/{name}")
                self._events.append(writer)
        self._step = step
        self._speed.start(step)
        self._console.tick(self._progress(step))

    def tick(self, step: int) -> None:
        """Says that step `step` was sent off. Costs under a microsecond unless a redraw is due."""
        if self._clock() >= self._console.due:
            self._console.tick(self._progress(step))

    def train(self, step: int, *reports: TrainReport) -> None:
        """Records the interval that ended with step `step`.

        Call it when the interval's numbers have come from the device, which may be while later
        steps are in flight: that moment counts as the step's end.

        Args:
            step: the last finished step in the interval.
            reports: one for each replica. Of a sweep that of the run's model is shown, else the
                means.

        Raises:
            CheckpointError: a record cannot be written.
        """
        speed = self._images_per_second = self._speed.report(step)
        for number, report in enumerate(reports):
            metrics = {**report._asdict(), "images_per_second": speed}
            if report.skipped is None:
                del metrics["skipped"]
            self._record(step, "train", number, metrics)
            self._say_skipped(step, number, report.skipped or 0)
        self._loss, self._accuracy = self._shown(reports)
        self._console.train(self._progress(step))

    def _shown(self, reports: Sequence[TrainReport]) -> tuple[float | None, float | None]:
        """The loss and the accuracy for a person."""
        if not self._replicas or "seed" not in self._replicas[0]:
            return reports[self._main].loss, reports[self._main].accuracy
        found = spreads([{"loss": each.loss, "accuracy": each.accuracy} for each in reports])
        return found["loss"]["mean"], found["accuracy"]["mean"]

    def _say_skipped(self, step: int, number: int, skipped: int) -> None:
        if not skipped:
            return
        of = f" of {replica_name(self._replicas[number])}" if self._replicas else ""
        if of and of in self._said_to_skip:
            return  # in a sweep it goes on doing so, and the others are to be seen
        self._said_to_skip.add(of)
        what = f"{skipped:,} update{'' if skipped == 1 else 's'}{of} up to step {step:,}"
        self._console.message(f"skipped  {what}: the loss or a gradient was NaN or infinite")

    def eval(self, step: int, split: str, *each: Mapping[str, float | None]) -> None:
        """Records an evaluation after step `step`.

        Args:
            step: finished updates of the weights that were evaluated.
            split: the split's name, as recorded in metrics.jsonl; TensorBoard's tags are
                `eval/loss` and `eval/accuracy` for any split.
            each: of each replica name to number, at least `loss` and `accuracy`; `count` is shown
                too. Of a sweep each is shown, else the means.

        Raises:
            CheckpointError: a record cannot be written.
        """
        for number, metrics in enumerate(each):
            self._record(step, split, number, metrics)
        for metrics in shown(self._replicas, each):
            self._console.evaluation(step, split, metrics, self._total_steps)

    @contextlib.contextmanager
    def paused(self, what: str) -> Iterator[BatchProgress]:
        """Takes the time inside out of the training time.

        The steps in flight must be finished before, else their time is taken out as well.

        Args:
            what: a verb for what is done instead of training, shown in the progress line
                ("evaluate", "save"); "compile" is announced, with the time that it took.

        Yields:
            A function to call with the batches done and their total, for a progress line.
        """
        compiling = what == "compile"
        if compiling:
            self._console.message("compiling")
        before = self._clock()
        with self._speed.paused(compiling=compiling):
            self._console.pause(what)
            try:
                yield lambda done, total: self._console.batches(what, done, total)
            finally:
                self._console.unpause()
        if compiling:
            self._console.message(f"compiled in {self._clock() - before:.1f} s")

    def hparams(self, flat_config: Mapping[str, Any], *final_metrics: Mapping[str, Any]) -> None:
        """Shows the finished run in TensorBoard's HPARAMS tab. Call it once, at the end.

        Args:
            flat_config: dotted key to value.
            final_metrics: of each replica name to value; TensorBoard shows the numbers as
                `final/<name>`.

        Raises:
            CheckpointError: the events cannot be written.
        """
        for number, events in enumerate(self._events):
            own = self._replicas[number] if self._replicas else {}
            events.hparams({**flat_config, **own}, final_metrics[number], self._step, self._now())

    def flush(self) -> None:
        """Makes the records survive a power cut, as a checkpoint does; call it with each save."""
        self._log.flush()

    def _record(
        self, step: int, split: str, number: int, metrics: Mapping[str, float | None]
    ) -> None:
        self._step = step
        header: dict[str, Any] = {"step": step, "time": self._now(), "split": split}
        if self._replicas:
            header |= {"replica": number, **self._replicas[number]}
        event = self._log.append({**header, **metrics})
        if self._events:
            self._events[number].write(event)

    def _of_all(self, images_per_second: float | None) -> float | None:
        """The speed of all replicas together."""
        count = max(len(self._replicas), 1)
        return None if images_per_second is None else count * images_per_second

    def _progress(self, step: int) -> Progress:
        return Progress(
            step=step,
            total_steps=self._total_steps,
            noun=self._noun,
            loss=self._loss,
            accuracy=self._accuracy,
            images_per_second=self._of_all(self._images_per_second),
            seconds_left=self._speed.seconds_left(step, self._total_steps),
        )
