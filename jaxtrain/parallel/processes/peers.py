"""The processes that train or evaluate together, from their start to their common end."""

import contextlib
import functools
import json
import os
import secrets
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from jaxtrain.config import Processes
from jaxtrain.errors import Stopped, UsageError
from jaxtrain.parallel.processes import coordination, relay, shared
from jaxtrain.parallel.processes.coordination import CoordinationService
from jaxtrain.parallel.processes.coordinator import Coordinator, listen
from jaxtrain.parallel.processes.group import Abort, Group, share_out
from jaxtrain.parallel.processes.member import Member
from jaxtrain.parallel.processes.place import Place, find_place
from jaxtrain.parallel.processes.relay import start_thread
from jaxtrain.parallel.processes.words import last_words, may_echo_a_loss, short, sign


def start(asked: Processes, timeout_seconds: float) -> "Peers":
    """Joins this process with the others of the run; must be called before JAX finds its devices.

    Args:
        asked: how the others are found.
        timeout_seconds: how long to wait for those that are not there yet, and within which one
            that is lost has ended all others.

    Returns:
        The processes, to be used as a context manager at once. If this process is alone nothing
        is started.

    Raises:
        UsageError: this process's place is not clear, or the others do not take it.
        PeerLostError: some process never started.
    """
    place = find_place(asked, os.environ, timeout_seconds)
    return Peers() if place is None else _Several(place, timeout_seconds)


class Peers:
    """The processes of a run; this class is a process alone.

    As a context manager it sees to it that all end together:

    - at a normal end, or when stopped, all wait for each other;
    - an exception of one process makes all others leave with its exit status and words.

    Attributes:
        index: which of them this is.
        count: how many there are.
    """

    index: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and prints for all."""
        return self.index == 0

    def before_exit(self, callback: Callable[[], None]) -> None:
        """Has `callback` called, in another thread, before the others' end ends this process."""

    def agree(self, what: str, values: Mapping[str, str]) -> None:
        """Compares what must be equal on all processes.

        Args:
            what: what the values are, for the error.
            values: any texts by name.

        Raises:
            UsageError: they differ; raised on every process.
        """

    def broadcast(self, name: str, value: str | None) -> str:
        """The first process's `value`, on all; the others' is not looked at.

        Args:
            name: of the value; all call it alike.
            value: the text; needed on the first process.
        """
        assert value is not None
        return value

    def barrier(self, name: str) -> None:
        """Waits until all processes are here."""

    def prove_shared(self, folder: Any) -> None:
        """Makes sure that all processes write to the same folder, as they do with checkpoints.

        Args:
            folder: a `Path`, or a bucket's path with the same methods, that exists.

        Raises:
            UsageError: one cannot write there or read what the first process wrote, or the first
                what one wrote; raised on every process.
        """

    def abort(self, status: int, words: str) -> None:
        """Makes all others leave with this status and these words: this process is about to."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        pass


class _Several(Peers):
    """One of several processes."""

    def __init__(self, place: Place, timeout_seconds: float) -> None:
        self.index, self.count = place.index, place.count
        self._timing = share_out(timeout_seconds)
        self._callbacks: list[Callable[[], None]] = []
        self._leaving = threading.Lock()  # kept by whoever ends this process
        self._has_own_words = False
        with contextlib.ExitStack() as until_it_listens:
            try:
                self._group, port = self._join(place, until_it_listens)
            except Exception as error:
                sign(error, self.index)
                raise
            try:
                self._service = CoordinationService(port, place, timeout_seconds)
            except BaseException as error:
                self._fail(error)
                sign(error, self.index)
                raise

    def _join(self, place: Place, until_it_listens: contextlib.ExitStack) -> tuple[Group, int]:
        """The group with all others in it, and the port of JAX's service on this machine."""
        if self.is_first:
            port = until_it_listens.enter_context(coordination.reserved_port())
            coordinator = Coordinator(
                listen(place.address), place.count, self._timing, self._leave, port
            )
            coordinator.gather()
            return coordinator, port
        member = Member(place.address, place.index, place.count, self._timing, self._leave)
        member.gather()
        return member, relay.listen(member.service_connection)

    def before_exit(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def agree(self, what: str, values: Mapping[str, str]) -> None:
        first = json.loads(self.broadcast(what, json.dumps(dict(values))))
        difference = ""
        for name in sorted({*first, *values}):
            mine, other = values.get(name), first.get(name)
            if mine != other:
                difference = (
                    f"{what}: {name} is {short(mine, other)} in process {self.index}, but "
                    f"{short(other, mine)} in process 0; start all with the same"
                )
                break
        self._raise_on_all(difference)

    def broadcast(self, name: str, value: str | None) -> str:
        assert value is not None or not self.is_first
        return self._group.all_gather(name, (value or "") if self.is_first else "")[0]

    def barrier(self, name: str) -> None:
        self._group.all_gather(name, "")

    def prove_shared(self, folder: Any) -> None:
        file = folder / f".seen-by-all-{secrets.token_hex(16)}"
        remove = functools.partial(shared.remove, file)
        self._callbacks.append(remove)  # for when another process ends this one
        try:
            self._raise_on_all(shared.write(self.index, file))
            names = dict(enumerate(self._group.all_gather("files", file.name)))
            others = names if self.is_first else {0: names[0]}
            self._raise_on_all(shared.read(self.index, folder, others))
        finally:
            remove()
            self._callbacks.remove(remove)

    def _raise_on_all(self, complaint: str) -> None:
        """Raises the first complaint of a process, if there is one."""
        for text in filter(None, self._group.all_gather("complaints", complaint)):
            raise UsageError(text)

    def abort(self, status: int, words: str) -> None:
        if self._speaks_first():
            self._group.abort(Abort(status, words, self.index))

    def _speaks_first(self) -> bool:
        """From here on this process leaves for reasons of its own; False if it did already.

        Where the others' end is just ending this process it never returns.
        """
        with self._leaving:
            first, self._has_own_words = not self._has_own_words, True
            return first

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        if error is None or isinstance(error, Stopped):
            self._finish()
        else:
            self._fail(error)
        sign(error, self.index)

    def _fail(self, error: BaseException) -> None:
        """Makes all others leave with the error's words, unless it follows from a loss."""
        if may_echo_a_loss(error):
            time.sleep(self._timing.timeout_seconds)  # until then the loss is known
        self.abort(*last_words(error))

    def _finish(self) -> None:
        """Leaves together with all others; process 0, where JAX's service is, as the last."""
        self.barrier("end")
        self._service.leave()
        self._group.finish()
        self._service.close()

    def _leave(self, abort: Abort) -> None:
        """Ends this process with all others, whatever its main thread waits for."""
        self._leaving.acquire()  # never released, so that nobody else leaves with other words
        if self._has_own_words:
            self._leaving.release()
            return
        try:
            call_within(self._timing.last_words_seconds, self._callbacks)
            whose = abort.process if abort.process is not None else self.index or None
            who = "" if whose is None else f"process {whose}: "
            os.write(2, f"jaxtrain: error: {who}{abort.words}\n".encode(errors="replace"))
        finally:
            os._exit(abort.status)


def call_within(seconds: float, callbacks: Sequence[Callable[[], None]]) -> None:
    """Calls them, and waits so long; one that hangs or fails keeps nobody."""

    def call() -> None:
        for callback in callbacks:
            with contextlib.suppress(Exception):
                callback()

    thread = start_thread(call, "last-words")
    thread.join(seconds)
