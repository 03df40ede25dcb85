"""The reporter of a process that leaves it to the first one to report."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from jaxtrain.report.reporter import BatchProgress, Reporter, TrainReport


class QuietReporter(Reporter):
    """Takes all that a `Reporter` takes, and does nothing with it."""

    def __init__(self) -> None:
        pass

    def close(self) -> None:
        """Does nothing."""

    def message(self, text: str) -> None:
        """Does nothing."""

    def start(self, step: int, *, evaluates: bool = False) -> None:
        """Does nothing."""

    def tick(self, step: int) -> None:
        """Does nothing."""

    def train(self, step: int, *reports: TrainReport) -> None:
        """Does nothing."""

    def eval(self, step: int, split: str, *each: Mapping[str, float | None]) -> None:
        """Does nothing."""

    @contextlib.contextmanager
    def paused(self, what: str) -> Iterator[BatchProgress]:
        """Does nothing before and after."""
        yield lambda done, total: None

    def hparams(self, flat_config: Mapping[str, Any], *final_metrics: Mapping[str, Any]) -> None:
        """Does nothing."""

    def flush(self) -> None:
        """Does nothing."""
