"""`jaxtrain predict`: images to class names and probabilities, one row each."""

import contextlib
import functools
import json
import sys
import time
from collections.abc import Iterator

import jax
import numpy as np
from numpy.typing import NDArray

from jaxtrain import data, predictor, tasks, workdir
from jaxtrain.config import PredictRequest, apply_overrides
from jaxtrain.errors import DataError, JaxtrainError, NonFiniteError
from jaxtrain.evaluation import Outputs, padded
from jaxtrain.parallel.mesh import within_memory
from jaxtrain.predictor import Predictor
from jaxtrain.report import Console, Row, open_console, open_rows

_NOT_FINITE = "the model's outputs are NaN or infinite"


def predict(request: PredictRequest) -> Iterator[str]:
    """Classifies images, in the order given; those that cannot be read get a row that says so.

    Yields:
        The rows' text; or, where they go to a file, the result as JSON when it is written.

    Raises:
        UsageError: there is no such model, nothing to classify, or no place for the rows.
        DataError: some images could not be read; after all rows.
        NonFiniteError: some outputs were not finite; likewise.
    """
    began = time.perf_counter()
    inputs = data.list_inputs(request.paths, sys.stdin.buffer)
    with contextlib.closing(open_console(sys.stderr, time.perf_counter)) as console:
        model, batch_size = _open(request, console)
        rows = _rows(model, inputs, min(batch_size, len(inputs)), request.top_k, console)
        ...
