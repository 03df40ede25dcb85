"""Writes a run's checkpoints in the background."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import jax
from orbax.checkpoint import v1 as ocp

from jaxtrain.checkpoint.agreement import on_first
from jaxtrain.checkpoint.on_devices import look
from jaxtrain.checkpoint.orbax import cause, context, list_steps, meta_file
from jaxtrain.errors import CheckpointError, NonFiniteError
from jaxtrain.files import AnyPath, absolute, atomic_write_text
from jaxtrain.state import TrainState

_SIGN = {"accuracy": 1.0, "loss": -1.0}


@dataclasses.dataclass(frozen=True)
class Best:
    """The best evaluation so far: at which step, by which metric, how good."""

    step: int
    metric: str
    value: float

    def beaten_by(self, value: float) -> bool:
        """Whether `value` is better; equal is not, so the earliest step stays the best."""
        return _SIGN[self.metric] * value > _SIGN[self.metric] * self.value


@dataclasses.dataclass
class _Kept:
    """Orbax's preservation policy: some of the newest steps, and the best."""

    newest: int
    best: int | None = None

    def should_preserve(self, checkpoints: Sequence[Any], *, context: object) -> list[bool]:
        """Whether to keep each; they come in ascending order."""
        old = len(checkpoints) - self.newest
        return [
            place >= old or checkpoint.step == self.best
            for place, checkpoint in enumerate(checkpoints)
        ]


class Checkpoints:
    """Writes a run's checkpoints in the background; a context manager.

    Leaving it waits for the last write. One save runs at a time: a second one waits for the first.
    All processes open it, save and leave it together, each for its part of the arrays.
    """

    def __init__(self, directory: AnyPath, keep: int) -> None:
        """Opens `directory`, which is made if it is not there.

        Args:
            directory: holds one folder a step.
            keep: newest steps to keep; the best one is kept as well.

        Raises:
            CheckpointError: the directory cannot be made or read.
        """
        self.directory = directory
        self._kept = _Kept(keep)
        self._pending: tuple[int, Any] | None = None
        self._steps = set(on_first(self._open))
        try:
            self._orbax = ocp.training.Checkpointer(
                absolute(directory),
                context=context(),
                preservation_policy=self._kept,
                cleanup_tmp_directories=True,
            )
        except Exception as error:  # Orbax wraps what the file system says in many types
            raise self._open_error(error) from error

    def _open(self) -> list[int]:
        """The steps that are there."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            return list_steps(self.directory)
        except Exception as error:  # a bucket's client has its own
            raise self._open_error(error) from error

    def _open_error(self, error: Exception) -> CheckpointError:
        return CheckpointError(f"cannot open {self.directory}: {cause(error)}")

    def save(self, state: TrainState, meta: Mapping[str, Any], *, overwrite: bool = False) -> None:
        """Starts to save a state, unless its step is saved already.

        Args:
            state: concrete arrays; they may be donated once this returns.
            meta: JSON values stored with the step; the step of its `best`, a `Best` as a mapping
                or None, is kept.
            overwrite: give a step that is saved already this `meta`. Its arrays stay what they
                are, so that there is no time at which the step is not whole.

        Raises:
            NonFiniteError: the model holds a NaN or an infinity; nothing is written.
            CheckpointError: this save, or the one before, cannot be written.
        """
        step = int(state.step)
        self.wait()
        best = meta["best"]
        self._kept.best = None if best is None else best["step"]
        # Not those on the disk now, which processes could find different.
        if step in self._steps:
            if overwrite:
                on_first(lambda: self._replace_meta(step, meta))
            return
        found = look(state.model, state.training)
        if not found.finite:
            raise NonFiniteError(
                f"a parameter is NaN or infinite after step {step}; this step is not saved; "
                "lower optimizer.learning_rate or set optimizer.clip_norm"
            )
        checksums = {"model": found.model, "training": found.training}
        try:
            response = self._orbax.save_checkpointables_async(
                step,
                {
                    "model": state.model,
                    "training": state.training,
                    "meta": {**meta, "step": step, "checksums": checksums},
                },
                force=True,
            )
        except Exception as error:
            raise _write_error(self.directory, step, error) from error
        self._pending = (step, response)
        self._steps.add(step)

    def _replace_meta(self, step: int, meta: Mapping[str, Any]) -> None:
        """Replaces what a step says of itself, all but the checksums of its arrays."""
        path = meta_file(self.directory / str(step))
        try:
            old = json.loads(path.read_text(encoding="utf-8"))
            new = {**meta, "step": step, "checksums": old["checksums"]}
            atomic_write_text(path, json.dumps(new))
        except Exception as error:  # a bucket's client has its own
            raise _write_error(self.directory, step, error) from error

    def wait(self) -> None:
        """Returns when the save that is under way is on disk.

        Raises:
            CheckpointError: it could not be written.
        """
        if self._pending is None:
            return
        (step, response), self._pending = self._pending, None
        try:
            response.result()
        except Exception as error:
            raise _write_error(self.directory, step, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        failure = None
        try:
            self.wait()
        except CheckpointError as raised:
            failure = raised
        # After an error that may be this process's alone the others would not come to close it.
        alone = jax.process_count() == 1
        if kind is None or (alone and issubclass(kind, Exception)):
            try:
                self._orbax.close()
            except Exception as raised:
                failure = failure or CheckpointError(
                    f"cannot finish writing to {self.directory}: {cause(raised)}"
                )
        if error is None and failure is not None:
            raise failure


def _write_error(directory: AnyPath, step: int, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"checkpoint of step {step} cannot be written to {directory}: {cause(error)}; "
        "free space or mend the folder, then run the same command again"
    )
