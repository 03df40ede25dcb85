"""Checkpoints: one Orbax step with the items `model`, `training` and `meta`.

`model` is what evaluation needs, `training` the rest of the state, `meta` a JSON object with the
config, the class names, the versions, the best evaluation so far and a checksum of every array, so
that a step says what it is and a damaged one is noticed (Orbax itself loads a flipped byte).
"""

import dataclasses
import functools
import math
import pathlib
import warnings
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import jax
from orbax.checkpoint import v1 as ocp

from jaxtrain.errors import CheckpointError, NonFiniteError, UsageError
from jaxtrain.state import TrainState, all_finite, fingerprint

_policies = ocp.training.preservation_policies
_SIGN = {"accuracy": 1.0, "loss": -1.0}

_checksums = jax.jit(lambda model, training: (fingerprint(model), fingerprint(training)))
_all_finite = jax.jit(all_finite)


@dataclasses.dataclass(frozen=True)
class Best:
    """The best evaluation so far: at which step, by which metric, how good."""

    step: int
    metric: str
    value: float

    def beaten_by(self, value: float) -> bool:
        """Whether `value` is better; equal is not, so the earliest step stays the best."""
        return _SIGN[self.metric] * value > _SIGN[self.metric] * self.value


def _context() -> ocp.Context:
    """Orbax's options: `meta` is JSON, so that a person can read it."""
    registry = ocp.handlers.local_registry()
    registry.add(ocp.handlers.JsonHandler, checkpointable_name="meta")
    context = ocp.Context()
    context.checkpointables.registry = registry
    # Trained weights hardly get smaller, and a quarter of a save's time goes into trying.
    context.array.saving.use_compression = False
    return context


class _DamagedError(CheckpointError):
    """A step whose files are not what was written."""


class Checkpoints:
    """Writes a run's checkpoints in the background; a context manager.

    Leaving it waits for the last write. One save runs at a time: a second one waits for the first.
    """

    def __init__(self, directory: pathlib.Path, keep: int, best_metric: str | None) -> None:
        """Opens `directory`, which is made if it is not there.

        Args:
            directory: holds one folder a step.
            keep: newest steps to keep.
            best_metric: also keep the step that is best by `accuracy` or `loss`.

        Raises:
            CheckpointError: the directory cannot be made or read.
        """
        policies: list[Any] = [_policies.LatestN(keep)]
        if best_metric is not None:
            policies.append(
                _policies.BestN(
                    get_metric_fn=functools.partial(_rank, best_metric),
                    n=1,
                    keep_checkpoints_without_metrics=False,
                )
            )
        self.directory = directory
        self.best_metric = best_metric
        self._pending: tuple[int, Any] | None = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._orbax = ocp.training.Checkpointer(
                directory.absolute(),
                context=_context(),
                preservation_policy=_policies.AnyPreservationPolicy(policies),
                cleanup_tmp_directories=True,
            )
        except Exception as error:  # Orbax wraps what the file system says in many types
            raise CheckpointError(f"cannot open {directory}: {_cause(error)}") from error

    def save(
        self, state: TrainState, meta: Mapping[str, Any], evaluated: Mapping[str, float] | None
    ) -> None:
        """Starts to save a state, unless its step is saved already.

        Args:
            state: concrete arrays; they may be donated once this returns.
            meta: JSON values stored with the step.
            evaluated: this step's evaluation, for `best_metric`; None if there was none.

        Raises:
            NonFiniteError: the model holds a NaN or an infinity; nothing is written.
            CheckpointError: this save, or the one before, cannot be written.
        """
        step = int(state.step)
        self.wait()
        if step in list_steps(self.directory):
            return
        if not bool(_all_finite(state.model)):
            raise NonFiniteError(
                f"a parameter is NaN or infinite after step {step}; this step is not saved; "
                "lower optimizer.learning_rate or set optimizer.clip_norm"
            )
        model, training = jax.device_get(_checksums(state.model, state.training))
        checksums = {"model": model.tolist(), "training": training.tolist()}
        metrics = None
        if self.best_metric is not None and evaluated is not None:
            score = _SIGN[self.best_metric] * evaluated[self.best_metric]
            metrics = {"metric": self.best_metric, "score": score, "step": step}
        try:
            response = self._orbax.save_checkpointables_async(
                step,
                {
                    "model": state.model,
                    "training": state.training,
                    "meta": {**meta, "step": step, "checksums": checksums},
                },
                force=True,
                metrics=metrics,
            )
        except Exception as error:
            raise _write_error(self.directory, step, error) from error
        self._pending = (step, response)

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
        if kind is None or issubclass(kind, Exception):
            try:
                self._orbax.close()
            except Exception as raised:
                _quieten()
                failure = failure or CheckpointError(
                    f"cannot finish writing to {self.directory}: {_cause(raised)}"
                )
        if error is None and failure is not None:
            raise failure


def list_steps(directory: pathlib.Path) -> list[int]:
    """Steps that were written whole, ascending; a save that was cut short is not among them."""
    if not directory.is_dir():
        return []
    return sorted(
        int(entry.name)
        for entry in directory.iterdir()
        if is_step_name(entry.name) and (entry / "_CHECKPOINT_METADATA").is_file()
    )


def is_step_name(name: str) -> bool:
    """Whether a step's folder may have this name: a whole number as Python writes it."""
    return name.isascii() and name.isdecimal() and str(int(name)) == name


def read_meta(directory: pathlib.Path, step: int) -> dict[str, Any]:
    """The `meta` of a step.

    Raises:
        CheckpointError: it cannot be read.
    """
    meta = _load(directory / str(step), {"meta": None})["meta"]
    _check_meta(directory / str(step), meta)
    return meta


def _check_meta(path: pathlib.Path, meta: Any) -> None:
    if not isinstance(meta, dict) or not isinstance(meta.get("checksums"), dict):
        raise _DamagedError(f"checkpoint {path}: its meta is not jaxtrain's")
    if str(meta.get("step")) != path.name:
        raise _DamagedError(f"checkpoint {path} holds step {meta.get('step')}, not {path.name}")


def restore_model(directory: pathlib.Path, step: int, abstract: Any) -> Any:
    """The `model` item alone, verified; no optimizer is needed.

    Args:
        directory: the run's checkpoints.
        step: one that `list_steps` has.
        abstract: `TrainState.model` with shapes, dtypes and shardings.

    Raises:
        CheckpointError: it cannot be read, does not fit `abstract` or is damaged.
    """
    loaded = _load(directory / str(step), {"model": abstract, "meta": None})
    _verify(directory / str(step), "model", loaded)
    return loaded["model"]


def restore_state(directory: pathlib.Path, step: int, abstract: TrainState) -> TrainState:
    """The whole state, verified.

    Raises:
        CheckpointError: as for `restore_model`.
    """
    items = {"model": abstract.model, "training": abstract.training, "meta": None}
    loaded = _load(directory / str(step), items)
    for item in ("model", "training"):
        _verify(directory / str(step), item, loaded)
    return TrainState.join(loaded["model"], loaded["training"])


def restore_newest(
    directory: pathlib.Path, abstract: TrainState, warn: Callable[[str], None]
) -> TrainState | None:
    """The newest step that is whole and undamaged, or None if nothing was saved yet.

    A damaged step is set aside as `<step>.damaged`, so that the run can save that step again. A
    step that cannot be read for another reason (permissions, a failing disk) stays and is raised.

    Args:
        directory: the run's checkpoints.
        abstract: the state with shapes, dtypes and shardings.
        warn: told in one line of each damaged step.

    Raises:
        CheckpointError: there are steps and every one is damaged, or one cannot be read.
    """
    steps = list_steps(directory)
    for name in _not_whole(directory, steps):
        aside = _set_aside(directory, name)
        warn(f"warning: checkpoint {directory / name} is not whole; it was set aside as {aside}")
    damaged: list[tuple[int, _DamagedError]] = []
    for step in reversed(steps):
        try:
            state = restore_state(directory, step, abstract)
        except _DamagedError as error:
            damaged.append((step, error))
            continue
        for bad, reason in damaged:
            aside = _set_aside(directory, str(bad))
            warn(f"warning: {reason}; it was set aside as {aside}, going on from step {step}")
        return state
    if damaged:
        raise CheckpointError(
            f"{damaged[0][1]}; all {len(damaged)} checkpoints are damaged; start another run with "
            "--fresh, or move the run's folder away"
        )
    return None


def resolve_step(directory: pathlib.Path, which: str) -> int:
    """The step that `--checkpoint` means.

    Args:
        directory: the run's checkpoints.
        which: `last`, `best` or a step number.

    Raises:
        UsageError: there is no such step; the message lists those there are.
    """
    steps = list_steps(directory)
    if not steps:
        raise UsageError(f"{directory} holds no checkpoint yet; train first")
    if which == "last":
        return steps[-1]
    listed = f"the steps are {', '.join(map(str, steps))}"
    if which == "best":
        best = read_meta(directory, steps[-1]).get("best")
        if best is None:
            raise UsageError(
                f"--checkpoint=best: the run kept no best one (checkpoint.best_metric); {listed}"
            )
        which = str(best["step"])
    if not is_step_name(which) or int(which) not in steps:
        raise UsageError(f"--checkpoint={which} is not in {directory}: {listed}, last or best")
    return int(which)


def _load(path: pathlib.Path, items: dict[str, Any]) -> dict[str, Any]:
    try:
        with _context():
            loaded: dict[str, Any] = ocp.load_checkpointables(path.absolute(), items)
    except Exception as error:  # Orbax, TensorStore and JSON each have their own types
        _quieten()
        for item, abstract in items.items():
            if misfit := _misfit(path, item, abstract):
                raise CheckpointError(
                    f"checkpoint {path} is not of this model: {misfit}; use the model and the "
                    "optimizer that it was written with, or start another run with --fresh"
                ) from error
        kind = CheckpointError if _is_passing(_root(error)) else _DamagedError
        raise kind(f"checkpoint {path} cannot be read: {_cause(error)}") from error
    return loaded


def _misfit(path: pathlib.Path, item: str, abstract: Any) -> str | None:
    """The first array that the checkpoint has otherwise than `abstract`, if any."""
    try:
        stored = ocp.checkpointables_metadata(path.absolute()).metadata[item]
        arrays = jax.tree.leaves_with_path(stored, is_leaf=lambda x: hasattr(x, "shape"))
        there = {_name(where): tuple(leaf.shape) for where, leaf in arrays}
    except Exception:  # then the files themselves are what is wrong
        return None
    wanted = {_name(where): leaf.shape for where, leaf in jax.tree.leaves_with_path(abstract)}
    for name in [*wanted, *there]:
        if there.get(name) != wanted.get(name):
            old, new = (shapes.get(name, "nothing") for shapes in (there, wanted))
            return f"{item} {name} is {old} there, but {new} here"
    return None


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _quieten() -> None:
    """After a failure Orbax leaves coroutines un-awaited, and Python would warn of each."""
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)


def _is_passing(error: BaseException) -> bool:
    """Whether reading may succeed another time: the machine failed, not the file."""
    missing = isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError)
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and not missing)


def _not_whole(directory: pathlib.Path, steps: list[int]) -> list[str]:
    """Folders that Orbax takes for steps, but that are none; it would never save those steps."""
    if not directory.is_dir():
        return []
    whole = set(map(str, steps))
    names = sorted(entry.name for entry in directory.iterdir())
    return [name for name in names if name.isdecimal() and name not in whole]


def _set_aside(directory: pathlib.Path, name: str) -> pathlib.Path:
    """Renames a damaged step to the first free `<name>.damaged`, `<name>.damaged-2`, ..."""
    aside, number = directory / f"{name}.damaged", 1
    while aside.exists():
        number += 1
        aside = directory / f"{name}.damaged-{number}"
    try:
        (directory / name).rename(aside)
    except OSError as error:
        raise CheckpointError(
            f"damaged checkpoint {directory / name} cannot be set aside: {error.strerror}; "
            "move it away"
        ) from error
    return aside


def _verify(path: pathlib.Path, item: str, loaded: Mapping[str, Any]) -> None:
    _check_meta(path, loaded["meta"])
    expected = loaded["meta"]["checksums"].get(item)
    found = jax.device_get(jax.jit(fingerprint)(loaded[item])).tolist()
    if found == expected:
        return
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(loaded[item])]
    bad = [name for name, a, b in zip(paths, found, expected or [], strict=False) if a != b]
    raise _DamagedError(
        f"checkpoint {path} is damaged: {item}{bad[0] if bad else ''} does not match its checksum"
    )


def _rank(best_metric: str, metrics: Mapping[str, Any]) -> tuple[float, int]:
    """Better is larger; of equals the earlier; a score by a metric of before counts last."""
    score = metrics["score"] if metrics["metric"] == best_metric else -math.inf
    return score, -metrics["step"]


def _write_error(directory: pathlib.Path, step: int, error: Exception) -> CheckpointError:
    _quieten()
    return CheckpointError(
        f"checkpoint of step {step} cannot be written to {directory}: {_cause(error)}; "
        "free space or mend the folder, then run the same command again"
    )


def _root(error: BaseException) -> BaseException:
    """The innermost cause; Orbax's own message hides it."""
    while True:
        inner = error.__cause__
        if inner is None and isinstance(error, BaseExceptionGroup):
            inner = error.exceptions[0]
        if inner is None:
            return error
        error = inner


def _cause(error: BaseException) -> str:
    """The innermost cause, on one line."""
    error = _root(error)
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"
