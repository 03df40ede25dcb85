"""`jaxtrain predict`: images to class names and probabilities, one row each."""

import contextlib
import io
import json
import math
import sys
import time
from collections.abc import Generator, Iterator
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from jaxtrain import data, predictor, tasks, workdir
from jaxtrain.config import PredictRequest, apply_overrides
from jaxtrain.errors import DataError, NonFiniteError, UsageError
from jaxtrain.evaluation import padded
from jaxtrain.parallel.mesh import within_memory
from jaxtrain.predictor import Predictor
from jaxtrain.report import Console, Row, check_rows_file, open_console, open_rows, stdout_text

_NOT_FINITE = "the model's outputs are NaN or infinite"


def predict(request: PredictRequest) -> Generator[str]:
    """Classifies images, in the order given; one that cannot be read gets a row that says so.

    Yields:
        The rows' text; or, where they go into a file, the result as JSON once that is written.

    Raises:
        UsageError: there is no such model, nothing to classify, or no place for the rows.
        DataError: images could not be read; after all rows.
        NonFiniteError: outputs were not finite; likewise.
    """
    began = time.perf_counter()
    inputs = data.list_inputs(request.paths, getattr(sys.stdin, "buffer", None))
    if request.output is not None:
        check_rows_file(request.output)
    with contextlib.closing(_console(request)) as console, within_memory():
        model, batch_size = _open(request, console)
        if request.top_k > len(model.class_names):
            raise UsageError(
                f"--top_k={request.top_k} is more than the model's {len(model.class_names)} classes"
            )
        answers = _Answers(model, inputs, min(batch_size, len(inputs)), request.top_k)
        if request.output is None:
            yield from _as_text(answers, request)
        else:
            console.pause("predict")
            with open_rows(request.output, top_k=request.top_k) as file:
                for done, rows in enumerate(answers, start=1):
                    file.write(*rows)
                    console.batches("predict", done, answers.batches)
            console.unpause()
            result = {
                "status": "predicted",
                "step": model.step,
                "count": len(inputs),
                "errors": answers.unreadable + answers.not_finite,
                "output": str(request.output),
                "seconds": round(time.perf_counter() - began, 3),
            }
            yield json.dumps(result) + "\n"
    answers.raise_errors()


def _console(request: PredictRequest) -> Console:
    """What a person sees beside the rows; nothing where the rows themselves go to the screen."""
    rows_on_screen = request.output is None and request.width is not None
    return open_console(io.StringIO() if rows_on_screen else sys.stderr, time.perf_counter)


def _open(request: PredictRequest, console: Console) -> tuple[Predictor, int]:
    """The model, and how many images it is given at a time."""
    if request.exported is not None:
        model = predictor.open_export(request.exported)
        return model, apply_overrides(model.config, request.overrides).eval.batch_size
    assert request.workdir is not None, "one of the two is given"
    stored = workdir.read_run(request.workdir)
    config = apply_overrides(stored.config, request.overrides)
    chosen = {"parallel.mesh", "parallel.rules"} & set(request.overrides)
    restored = predictor.load(
        stored.path / "checkpoints",
        request.checkpoint,
        config.parallel,
        chosen=bool(chosen),
        say=console.message,
    )
    return restored, config.eval.batch_size


def _as_text(answers: "_Answers", request: PredictRequest) -> Iterator[str]:
    """The rows for stdout."""
    names = answers.model.class_names
    text = stdout_text(width=request.width, top_k=request.top_k, class_names=names)
    yield text.head
    for rows in answers:
        yield text.text(rows)


class _Answers:
    """Rows of images, a batch at a time, and what went wrong so far.

    Attributes:
        model: what classifies them.
        batches: how many there are.
        unreadable: images that could not be read.
        not_finite: images whose outputs are not finite.
        first: the first of either, and why.
    """

    def __init__(self, model: Predictor, inputs: data.Inputs, batch_size: int, top_k: int) -> None:
        self.model = model
        self.batches = math.ceil(len(inputs) / batch_size)
        self.unreadable = 0
        self.not_finite = 0
        self.first = ""
        self._inputs = inputs
        self._batch_size = batch_size
        self._top_k = top_k

    def __iter__(self) -> Iterator[list[Row]]:
        logits = padded(self.model.logits, self._batch_size)
        ranked = jax.jit(tasks.ranked, static_argnums=1)
        crop = self.model.config.data.eval_crop
        for batch in self._inputs.batches(self._batch_size, self.model.image_shape, crop):
            found: NDArray[np.float32] = logits(batch.images)
            ranking = jax.device_get(ranked(found, self._top_k))
            finite = [bool(np.isfinite(row).all()) for row in found]
            yield [
                self._row(name, batch.errors.get(row), finite[row], ranking, row)
                for row, name in enumerate(batch.names)
            ]

    def _row(
        self, name: str, error: str | None, finite: bool, ranking: dict[str, Any], row: int
    ) -> Row:
        if error is not None:
            self.unreadable += 1
        elif not finite:
            error = _NOT_FINITE
            self.not_finite += 1
        if error is not None:
            self.first = self.first or f"{name}: {error}"
            return Row(path=name, error=error)
        return Row(
            path=name,
            classes=tuple(self.model.class_names[index] for index in ranking["top"][row]),
            probabilities=tuple(ranking["top_probability"][row].tolist()),
        )

    def raise_errors(self) -> None:
        """Says that not all is well, after all rows.

        Raises:
            DataError: images could not be read.
            NonFiniteError: outputs were not finite.
        """
        total = len(self._inputs)
        if self.not_finite:
            raise NonFiniteError(
                f"{self.not_finite:,} of {total:,} images have no answer; the first is {self.first}"
            )
        if self.unreadable:
            raise DataError(
                f"{self.unreadable:,} of {total:,} images could not be read; the first is "
                f"{self.first}"
            )
