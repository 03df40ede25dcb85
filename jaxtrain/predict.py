"""`jaxtrain predict`: images to class names and probabilities, one row each."""

import contextlib
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
from jaxtrain.data.examples import is_image
from jaxtrain.errors import DataError, NonFiniteError, UsageError
from jaxtrain.parallel.mesh import within_memory
from jaxtrain.predictor import Predictor
from jaxtrain.report import Console, Row, check_rows_file, open_console, open_rows, stdout_text
from jaxtrain.runtimes import padded

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
    with (
        contextlib.closing(open_console(sys.stderr, time.perf_counter)) as console,
        within_memory(),
    ):
        model, batch_size = _open(request, console)
        if request.top_k > len(model.class_names):
            raise UsageError(
                f"--top_k={request.top_k} is more than the model's {len(model.class_names)} classes"
            )
        answers = _Answers(model, inputs, min(batch_size, len(inputs)), request.top_k)
        for suffix, count in inputs.left_out.items():
            console.message(f"left out: {count:,} {suffix}, no images by their names")
        if request.output is None:
            yield from _as_text(answers, request, console)
        else:
            with open_rows(request.output, top_k=request.top_k) as file:
                for rows in _with_progress(answers, console):
                    file.write(*rows)
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


def _open(request: PredictRequest, console: Console) -> tuple[Predictor, int]:
    """The model, and how many images it is given at a time."""
    if request.exported is not None:
        model = predictor.open_export(request.exported)
        return model, apply_overrides(model.config, request.overrides).eval.batch_size
    assert request.workdir is not None, "one of the two is given"
    stored = workdir.read_run(request.workdir)
    config = apply_overrides(stored.config, request.overrides)
    restored = predictor.load(
        stored.checkpoints_dir,
        request.checkpoint,
        config,
        request.overrides,
        console.message,
    )
    return restored, config.eval.batch_size


def _as_text(answers: "_Answers", request: PredictRequest, console: Console) -> Iterator[str]:
    """The rows for stdout; where a person sees them they are the progress themselves."""
    names = answers.model.class_names
    text = stdout_text(width=request.width, top_k=request.top_k, class_names=names)
    yield text.head
    on_screen = request.width is not None
    for rows in answers if on_screen else _with_progress(answers, console):
        yield text.text(rows)


def _with_progress(answers: "_Answers", console: Console) -> Iterator[list[Row]]:
    """The rows, told to the console."""
    console.pause("predict")
    for done, rows in enumerate(answers, start=1):
        yield rows
        console.batches("predict", done, answers.batches)
    console.unpause()


class _Answers:
    """Rows of images, a batch at a time, and what went wrong so far.

    Attributes:
        model: what classifies them.
        batches: how many there are.
        unreadable: images that could not be read.
        not_finite: images whose outputs are not finite.
    """

    def __init__(self, model: Predictor, inputs: data.Inputs, batch_size: int, top_k: int) -> None:
        self.model = model
        self.batches = math.ceil(len(inputs) / batch_size)
        self.unreadable = 0
        self.not_finite = 0
        self._first = {"unreadable": "", "not_finite": ""}
        config = model.config.data
        background = data.rgb(config.background)
        self._images = inputs.batches(batch_size, model.image_shape, config.eval_crop, background)
        self._inputs = inputs
        self._batch_size = batch_size
        self._top_k = top_k

    def __iter__(self) -> Iterator[list[Row]]:
        logits = padded(self.model.logits, self._batch_size)
        ranked = jax.jit(tasks.ranked, static_argnums=1)
        for batch in self._images:
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
            self._first["unreadable"] = self._first["unreadable"] or f"{name}: {error}"
            return Row(path=name, error=error)
        if not finite:
            self.not_finite += 1
            self._first["not_finite"] = self._first["not_finite"] or name
            return Row(path=name, error=_NOT_FINITE)
        return Row(
            path=name,
            classes=tuple(self.model.class_names[index] for index in ranking["top"][row]),
            probabilities=tuple(ranking["top_probability"][row].tolist()),
        )

    def raise_errors(self) -> None:
        """Says that not all is well, after all rows.

        Raises:
            NonFiniteError: outputs were not finite.
            DataError: images could not be read.
        """
        total = len(self._inputs)
        parts = []
        if self.not_finite:
            first = self._first["not_finite"]
            parts.append(f"{self.not_finite:,}: {_NOT_FINITE}, first for {first}")
        if self.unreadable:
            first = self._first["unreadable"]
            parts.append(f"{self.unreadable:,} could not be read, first {first}")
        if parts:
            kind = NonFiniteError if self.not_finite else DataError
            noun = "images" if is_image(self.model.image_shape) else "examples"
            raise kind(f"of {total:,} {noun} {'; '.join(parts)}")
