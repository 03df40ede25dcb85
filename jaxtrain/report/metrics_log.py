"""metrics.jsonl: one line of strict JSON an event, the one record that all others are made from."""

import errno
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxtrain.errors import CheckpointError, UsageError
from jaxtrain.files import atomic_write_bytes, strict

Event = dict[str, Any]


class MetricsLog:
    """The events of a run in the order in which they were written.

    Nothing is read, created or written before the first call.

    Args:
        path: the file; its folder exists.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: io.FileIO | None = None

    def resume(self, step: int, *, evaluates: bool = False) -> None:
        """Drops what a run that goes on from `step` will write again.

        Keeps exactly the lines of what comes before, byte for byte, in one atomic replacement. A
        last line that a crash left half-written is dropped.

        Args:
            step: finished updates to go on from; 0 for a new run.
            evaluates: whether that begins with an evaluation of `step`.

        Raises:
            UsageError: a line is damaged.
            CheckpointError: the file cannot be written.
        """
        self.close()

        def comes_again(event: Event) -> bool:
            # Not by the split: a run may be evaluated on the training split.
            evaluation = event["step"] == step and "learning_rate" not in event
            return event["step"] > step or (evaluates and evaluation)

        content = self._content()
        kept = b"".join(line for line, event in self._parse(content) if not comes_again(event))
        if kept == content:
            return
        atomic_write_bytes(self._path, kept)

    def append(self, event: Mapping[str, Any]) -> Event:
        """Writes one event as one line, in one write, so that a crash cannot mix two lines.

        Args:
            event: at least `step`, `time` (seconds since 1970) and `split`; the values are
                strings, None or numbers (NumPy scalars too).

        Returns:
            The event as written: plain Python numbers, and None for NaN and the infinities, which
            JSON has no words for.

        Raises:
            CheckpointError: the line cannot be written.
        """
        plain: Event = strict(event)
        line = json.dumps(plain, allow_nan=False).encode() + b"\n"
        try:
            if self._file is None:
                self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115
            if self._file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise self._write_error(error) from error
        return plain

    def read(self) -> list[Event]:
        """Returns all whole events, oldest first; an absent file has none.

        Raises:
            UsageError: a line is damaged or the file cannot be read.
        """
        return [event for _, event in self._parse(self._content())]

    def flush(self) -> None:
        """Makes what was written survive a power cut as well (a killed process loses nothing)."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file; a later `append` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _content(self) -> bytes:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise UsageError(f"cannot read {self._path}: {error.strerror}") from error

    def _parse(self, content: bytes) -> list[tuple[bytes, Event]]:
        """The lines, each with its newline and its event, without a half-written last one."""
        parsed = []
        for number, line in enumerate(content.splitlines(keepends=True), start=1):
            event = _event(line)
            if event is not None:
                parsed.append((line.rstrip(b"\n") + b"\n", event))
            elif line.endswith(b"\n"):
                raise UsageError(
                    f"{self._path}: line {number} is not an event in JSON; "
                    "repair or delete that line, then run the same command again"
                )
        return parsed

    def _write_error(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"cannot write {self._path}: {error.strerror}; make room or mend the folder, "
            "then run the same command again"
        )


def _event(line: bytes) -> Event | None:
    """The event in `line`, or None if it holds none."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    whole = (
        isinstance(event, dict)
        and type(event.get("step")) is int
        and isinstance(event.get("time"), int | float)
        and isinstance(event.get("split"), str)
        and all(value is None or isinstance(value, int | float | str) for value in event.values())
    )
    return event if whole else None
