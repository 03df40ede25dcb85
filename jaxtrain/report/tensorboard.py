"""TensorBoard event files, written with tensorboard's own record format and messages.

tensorboard's own `EventFileWriter` opens its file through TensorFlow wherever that is installed,
and importing it would cost seconds; its `RecordWriter` needs a plain Python file only.
"""

import contextlib
import math
import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog, SourceMetadata
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2, summary_v2
from tensorboard.summary.writer.record_writer import RecordWriter

from jaxtrain.errors import CheckpointError

# What every viewer looks for in a file's name; what is being made must not have it.
MARK = "events.out.tfevents."
UNFINISHED = "rebuild.tmp"

TRAIN_TAGS = {
    "loss": "train/loss",
    "accuracy": "train/accuracy",
    "learning_rate": "learning_rate",
    "images_per_second": "images_per_second",
    "skipped": "train/skipped",
}
EVAL_TAGS = {
    name: f"eval/{name}"
    for name in (
        "loss",
        "accuracy",
        "top5_accuracy",
        "raw_loss",
        "raw_accuracy",
        "ema_loss",
        "ema_accuracy",
    )
}


class EventWriter:
    """One event file that holds all of a run, from its first step on.

    Opening makes the file anew from the events so far, beside the old ones, renames it into place
    and only then empties those. However a run was killed, a viewer finds every step once: the new
    file begins with a session start, which makes a viewer drop what it read in older files.

    Args:
        directory: where the event files are; made if absent.
        events: the events so far, as `MetricsLog.read` returns them.
        started: the time of this start, in seconds since 1970.
        name: of the run, or of one of its models.

    Raises:
        CheckpointError: the folder cannot be written.
    """

    def __init__(
        self, directory: Path, events: Iterable[Mapping[str, Any]], started: float, name: str
    ) -> None:
        self._started = started
        self._name = name
        self._directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = open(directory / UNFINISHED, "wb")  # noqa: SIM115 - closed by `close`
            self._records = RecordWriter(self._file)
            with contextlib.ExitStack() as unless_done:
                unless_done.callback(self.close)
                self._rebuild(events)
                unless_done.pop_all()
        except OSError as error:
            raise self._write_error(error) from error

    def write(self, event: Mapping[str, Any]) -> None:
        """Adds the scalars of one event (a line of metrics.jsonl) and shows them to viewers.

        Raises:
            CheckpointError: the file cannot be written.
        """
        self._show(_scalars(event))

    def hparams(
        self,
        flat_config: Mapping[str, Any],
        final_metrics: Mapping[str, Any],
        step: int,
        time: float,
    ) -> None:
        """Adds what the HPARAMS tab shows of a finished run.

        Args:
            flat_config: key to value; what is no bool, int, float or string is shown as text.
            final_metrics: name to value; each number becomes the scalar `final/<name>`.
            step: the last step.
            time: when the run finished, in seconds since 1970.

        Raises:
            CheckpointError: the file cannot be written.
        """
        values = {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in flat_config.items()
        }
        start = summary_v2.hparams_pb(values, trial_id=self._name, start_time_secs=self._started)
        finals = {
            f"final/{name}": value
            for name, value in final_metrics.items()
            if isinstance(value, int | float)
        }
        for summary in (start, _summary(finals), _session_end(time)):
            self._show(Event(wall_time=time, step=step, summary=summary))

    def close(self) -> None:
        """Closes the file. All events are in it already."""
        # What a full disk kept out was raised when it was written.
        with contextlib.suppress(OSError):
            self._file.close()

    def _rebuild(self, events: Iterable[Mapping[str, Any]]) -> None:
        older = sorted(self._directory.glob(f"*{MARK}*"))
        self._add(_version(self._started))
        self._add(_session_start(self._started))
        for event in events:
            self._add(_scalars(event))
        self._file.flush()
        os.fsync(self._file.fileno())
        name = _file_name(self._started, older)
        os.replace(self._directory / UNFINISHED, self._directory / name)
        for path in older:
            _retire(path)

    def _add(self, event: Event) -> None:
        self._records.write(event.SerializeToString())

    def _show(self, event: Event) -> None:
        try:
            self._add(event)
            self._file.flush()
        except OSError as error:
            raise self._write_error(error) from error

    def _write_error(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"cannot write TensorBoard events to {self._directory}: {error.strerror}; make room or "
            "mend the folder, then run the same command again"
        )


def _scalars(event: Mapping[str, Any]) -> Event:
    # Not by the split: a run may be evaluated on the training split.
    tags = TRAIN_TAGS if "learning_rate" in event else EVAL_TAGS
    values = {tag: event[name] for name, tag in tags.items() if name in event}
    return Event(wall_time=event["time"], step=event["step"], summary=_summary(values))


def _summary(values: Mapping[str, float | None]) -> Summary:
    """Scalars by tag. None, which metrics.jsonl has for what is not finite, is drawn as NaN."""
    return Summary(
        value=[
            Summary.Value(tag=tag, simple_value=math.nan if value is None else value)
            for tag, value in values.items()
        ]
    )


def _version(time: float) -> Event:
    source = SourceMetadata(writer="jaxtrain")
    return Event(wall_time=time, file_version="brain.Event:2", source_metadata=source)


def _session_start(time: float) -> Event:
    return Event(wall_time=time, step=0, session_log=SessionLog(status=SessionLog.START))


def _session_end(time: float) -> Summary:
    info = plugin_data_pb2.SessionEndInfo(status=api_pb2.STATUS_SUCCESS, end_time_secs=time)
    data = plugin_data_pb2.HParamsPluginData(session_end_info=info)
    value = Summary.Value(
        tag=metadata.SESSION_END_INFO_TAG,
        metadata=metadata.create_summary_metadata(data),
        tensor=metadata.NULL_TENSOR,
    )
    return Summary(value=[value])


def _retire(path: Path) -> None:
    """Empties an older file; the next start removes it.

    A running TensorBoard without its data server never gets past a file that is gone.
    """
    if path.stat().st_size:
        os.truncate(path, 0)
    else:
        path.unlink()


def _file_name(started: float, older: list[Path]) -> str:
    """A name that sorts after `older`, since viewers read a folder's files in that order."""
    seconds = int(started)
    for path in older:
        digits = path.name.partition(MARK)[2].partition(".")[0]
        if digits.isdecimal():
            seconds = max(seconds, int(digits) + 1)
    return f"{MARK}{seconds:010d}.{socket.gethostname()}.{os.getpid()}.0"
