"""Who has a folder in a bucket: an object there that its holder writes again and again.

A bucket has no locks, but it replaces an object only if that is of the generation which the writer
has seen, so of several writers one wins. A holder that died writes no more. One that only could not
write for long, as its machine stood still or was cut off, may have lost the folder without knowing,
so it has to write once more before it goes on.
"""

import contextlib
import dataclasses
import datetime
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from jaxtrain.errors import CheckpointError, UsageError
from jaxtrain.files import AnyPath, bucket
from jaxtrain.files.bucket import Conflict, Stored
from jaxtrain.workdir.names import LOCK, held_error

RENEW_SECONDS = 10.0
STALE_SECONDS = 60.0
LOOK_SECONDS = 2.0
# After which a holder no longer takes its hold for granted: well before others may take it.
DOUBT_SECONDS = STALE_SECONDS - 2 * RENEW_SECONDS


@dataclasses.dataclass(frozen=True)
class Holder:
    """A process, told apart from every other on any machine.

    Attributes:
        pid: its number.
        host: the machine's name.
        kernel: the machine's start and the process's namespace: where the number means something.
        began: when it began, in the kernel's ticks; a number is given to other processes later.
        nonce: of one hold.
    """

    pid: int
    host: str
    kernel: str
    began: str
    nonce: str

    @classmethod
    def this(cls) -> "Holder":
        """This process."""
        pid = os.getpid()
        return cls(pid, socket.gethostname(), _kernel(), _began(pid), uuid.uuid4().hex)

    @classmethod
    def read(cls, content: bytes) -> "Holder":
        """Whom a lease's content names; a damaged one nobody that is known of."""
        try:
            return cls(**json.loads(content))
        except (ValueError, TypeError):
            return cls(0, "an unknown host", "", "", "")

    @property
    def is_here(self) -> bool:
        """Whether it is, or was, a process of this machine."""
        return bool(self.kernel) and self.kernel == _kernel()

    @property
    def is_gone(self) -> bool:
        """Whether it is known to have ended, however that was."""
        return self.is_here and self.began != _began(self.pid)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Lease:
    """A hold on a folder in a bucket, until it is released.

    Args:
        path: the folder.
        say: told in one line that it has to wait.

    Raises:
        UsageError: a live run holds it.
        Exception: as for `files.bucket.read`.
    """

    def __init__(self, path: AnyPath, say: Callable[[str], None]) -> None:
        self._folder = path
        self._say = say
        self._path = path / LOCK
        self._content = json.dumps(dataclasses.asdict(Holder.this())).encode()
        self._renewed = _Moment.now()
        self._stored = self._take()
        self._taken_by: Holder | None = None
        self._renewing = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True, name="lease")
        self._thread.start()

    def check(self) -> None:
        """Nothing may be written to the folder without a look at this, right before.

        A hold that was not renewed for `DOUBT_SECONDS` is renewed first, with as much patience as
        any other write has.

        Raises:
            CheckpointError: another run has taken the folder, since it did not hear of this one; or
                it cannot be found out whether one has.
        """
        failure: Exception | None = None
        tried = time.monotonic()
        while self._taken_by is None and self._renewed.seconds_ago() > DOUBT_SECONDS:
            try:
                self._renew_once()
            except Exception as error:  # as for `files.bucket.read`
                failure = error
            else:
                break
            if time.monotonic() - tried > bucket.WRITE_SECONDS:
                raise CheckpointError(
                    f"workdir {self._folder} could not be reached for "
                    f"{self._renewed.seconds_ago():.0f} s, so that another run may have taken it "
                    f"over: {bucket.explain(failure)}; run the same command again"
                ) from failure
            time.sleep(LOOK_SECONDS)
        if self._taken_by is not None:
            raise CheckpointError(
                f"workdir {self._folder} was taken over by {self._taken_by}, as it had not heard "
                f"of this run for {STALE_SECONDS:.0f} s; wait for that one, or start another "
                "run with --fresh"
            )

    def release(self) -> None:
        """Lets go; where that fails others have to wait until the lease is stale."""
        self._end.set()
        self._thread.join(STALE_SECONDS)
        if self._taken_by is None:
            with contextlib.suppress(Exception):
                bucket.delete(self._path, self._stored.generation)

    def _take(self) -> Stored:
        generation = 0
        while True:
            began = _Moment.now()
            try:
                stored = bucket.write(self._path, self._content, generation)
            except Conflict:
                held = bucket.read(self._path)
            else:
                self._renewed = began
                return stored
            if held is None:
                generation = 0
            elif held.content == self._content:  # the answer to a write was lost
                return held
            else:
                generation = self._wait_for(held)

    def _wait_for(self, held: Stored) -> int:
        """Returns the generation to replace once `held` is nobody's any more.

        Raises:
            UsageError: its holder lives.
        """
        holder = Holder.read(held.content)
        if holder.is_gone:
            return held.generation
        age = (self._now() - held.updated).total_seconds()
        if holder.is_here and age < STALE_SECONDS:
            raise held_error(self._folder, str(holder))
        if age < STALE_SECONDS:
            self._say(
                f"workdir {self._folder} is held by {holder}; if that has ended, this goes on in "
                f"{STALE_SECONDS - age:.0f} s"
            )
        stale = time.monotonic() + STALE_SECONDS - age
        while time.monotonic() < stale:
            time.sleep(LOOK_SECONDS)
            seen = bucket.read(self._path)
            if seen is None:
                return 0
            if seen.generation != held.generation:
                raise held_error(self._folder, str(Holder.read(seen.content)))
        return held.generation

    def _now(self) -> datetime.datetime:
        """The time by the service's clock: that of a write."""
        clock = self._folder / f"{LOCK}.{uuid.uuid4().hex}.tmp"
        written = bucket.write(clock, b"")
        bucket.delete(clock)
        return written.updated

    def _renew(self) -> None:
        while not self._end.wait(RENEW_SECONDS):
            # It may be reached again the next time; until then `check` counts the seconds.
            with contextlib.suppress(Exception):
                self._renew_once()
            if self._taken_by is not None:
                return

    def _renew_once(self) -> None:
        """Writes the lease anew, or finds who else did; as for `files.bucket.write`."""
        with self._renewing:
            while self._taken_by is None:
                began = _Moment.now()  # what the service writes is no older
                try:
                    self._stored = bucket.write(self._path, self._content, self._stored.generation)
                except Conflict:
                    found = bucket.read(self._path)
                    if found is not None and found.content == self._content:
                        self._stored = found  # the answer to a write was lost
                    else:
                        self._taken_by = Holder.read(b"" if found is None else found.content)
                else:
                    self._renewed = began
                    return


class _Moment(NamedTuple):
    """A moment by both of the machine's clocks."""

    monotonic: float
    wall: float

    @classmethod
    def now(cls) -> "_Moment":
        return cls(time.monotonic(), time.time())

    def seconds_ago(self) -> float:
        """By the clock that says more: one may stand still with its machine, one may be set."""
        now = self.now()
        return max(now.monotonic - self.monotonic, now.wall - self.wall)


@contextlib.contextmanager
def leased(path: AnyPath, say: Callable[[str], None]) -> Iterator[Lease]:
    """Holds a folder in a bucket while inside.

    A holder that has ended on this machine is followed at once, one elsewhere when it has not been
    heard of for `STALE_SECONDS`.

    Raises:
        UsageError: another process holds it, or it cannot be written.
    """
    try:
        lease = Lease(path, say)
    except UsageError:
        raise
    except Exception as error:  # requests and Google's layers each have their own
        raise UsageError(
            f"cannot write to workdir {path}: {bucket.explain(error)}; choose another with "
            "--workdir"
        ) from error
    try:
        yield lease
    finally:
        lease.release()


def _kernel() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def _began(pid: int) -> str:
    """When a process began; empty if there is none, or it is only waited for."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return ""
    state, *rest = text.rpartition(")")[2].split()
    return "" if state == "Z" else rest[18]
