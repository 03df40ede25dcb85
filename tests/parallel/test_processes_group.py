"""The group without JAX: coordinator and members in threads, and connections that misbehave."""

import contextlib
import dataclasses
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxtrain.errors import PeerLostError, UsageError
from jaxtrain.parallel.processes import relay, wire
from jaxtrain.parallel.processes.coordinator import Coordinator
from jaxtrain.parallel.processes.group import Abort, Group, Timing, share_out
from jaxtrain.parallel.processes.member import Member
from jaxtrain.parallel.processes.wire import Connection, Silence

WAIT_SECONDS = 20
# Nobody is lost, however busy the machine is.
PATIENT = share_out(WAIT_SECONDS)
# For what never starts, and for connections that are silent: no process that lives has it.
HURRIED = dataclasses.replace(PATIENT, timeout_seconds=0.3)
STRICT = dataclasses.replace(PATIENT, beat_seconds=0.1, ticks=5)


class Meeting:
    """Processes that are only threads of this one, and the aborts that each of them hears of."""

    def __init__(self, count: int, timing: Timing = PATIENT) -> None:
        self.count = count
        self.timing = timing
        self.aborts: dict[int, list[Abort]] = {k: [] for k in range(count)}
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.members: list[Member] = []
        self.coordinator = Coordinator(listener, count, timing, self.aborts[0].append, 1)

    def member(self, index: int) -> Member:
        abort = self.aborts[index].append
        member = Member(self.address, index, self.count, self.timing, abort)
        self.members.append(member)
        return member

    def close(self) -> None:
        for member in self.members:
            member._leaving = True
        self.coordinator._abort = Abort(0, "", None)
        for connection in list(self.coordinator._members.values()):
            connection.close()
        self.coordinator.finish()
        for member in self.members:
            wait_for(member._closed.is_set)

    def groups(self, *absent: int) -> list[Group]:
        """All are there, but those in `absent`, for which a test stands in."""
        members = [self.member(k) for k in range(1, self.count) if k not in absent]
        together(*(group.gather for group in (self.coordinator, *members)))
        return [self.coordinator, *members]

    def stranger(self, *lines: bytes) -> socket.socket:
        """A connection that says this."""
        sock = socket.create_connection(self.address)
        sock.sendall(b"".join(lines))
        return sock

    def hear(self, *indices: int) -> list[Abort]:
        """The one abort that each of these processes hears of."""
        wait_for(lambda: all(self.aborts[k] for k in indices))
        return [abort for k in indices for abort in self.aborts[k]]


Meet = Callable[..., Meeting]


@pytest.fixture
def meet() -> Iterator[Meet]:
    """Makes meetings, and ends them."""
    with contextlib.ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(contextlib.closing(Meeting(*arguments)))


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Runs the calls at the same time."""
    with futures.ThreadPoolExecutor(len(calls)) as pool:
        return [f.result(WAIT_SECONDS) for f in [pool.submit(call) for call in calls]]


def all_gather(groups: list[Group], name: str, *texts: str) -> list[list[str]]:
    return together(
        *(
            lambda r=group, t=text: r.all_gather(name, t)
            for group, text in zip(groups, texts, strict=True)
        )
    )


def hello(index: int, count: int) -> bytes:
    return json.dumps({"jaxtrain": "member", "index": index, "count": count}).encode() + b"\n"


@pytest.mark.parametrize("count", [2, 4])
def test_the_texts_of_all_are_gathered_in_their_order(meet: Meet, count: int) -> None:
    groups = meet(count).groups()
    for turn in ("a", "b"):
        texts = [f"{turn}{group.index}" for group in groups]
        assert all_gather(groups, "x", *texts) == [texts] * count


def test_a_text_may_be_long_and_hold_anything(meet: Meet) -> None:
    groups = meet(2).groups()
    texts = ["é\n\0'" * 10**6, ""]
    assert all_gather(groups, "x", *texts) == [texts] * 2


def test_processes_at_different_places_are_a_fault(meet: Meet) -> None:
    coordinator, member = meet(2).groups()
    with futures.ThreadPoolExecutor(1) as pool:
        pool.submit(member.all_gather, "b", "")
        with pytest.raises(RuntimeError, match="process 1 is at '1 b', process 0 at '1 a'"):
            coordinator.all_gather("a", "")
        coordinator.abort(Abort(1, "x", 0))
        member._answers.put({"all": []})  # type: ignore[attr-defined]  # or its thread would wait


@pytest.mark.parametrize("teller", [0, 1, 2])
def test_the_words_of_one_are_heard_by_all_others(meet: Meet, teller: int) -> None:
    meeting = meet(3, dataclasses.replace(PATIENT, goodbye_seconds=WAIT_SECONDS))
    groups = meeting.groups()
    abort = Abort(3, "bad data", teller)
    begun = time.monotonic()
    groups[teller].abort(abort)
    assert time.monotonic() - begun < WAIT_SECONDS / 2, "they say that they have heard"
    others = {0, 1, 2} - {teller}
    assert meeting.hear(*others) == [abort, abort]
    assert meeting.aborts[teller] == []


def test_the_first_words_count(meet: Meet) -> None:
    meeting = meet(3)
    _, one, two = meeting.groups()
    one.abort(Abort(3, "first", 1))
    two.abort(Abort(4, "second", 2))
    assert meeting.hear(0) == [Abort(3, "first", 1)]


def test_a_common_end_is_no_loss(meet: Meet) -> None:
    meeting = meet(3)
    coordinator, *members = groups = meeting.groups()
    all_gather(groups, "end", "", "", "")
    together(*(group.finish for group in groups))
    for member in members:
        member._coordinator.close()  # type: ignore[attr-defined]
    time.sleep(0.1)
    assert meeting.aborts == {0: [], 1: [], 2: []}
    assert coordinator._closed.is_set()


def test_a_connection_that_ends_is_a_lost_process(meet: Meet) -> None:
    meeting = meet(3)
    stranger = meeting.stranger(hello(1, 3))
    meeting.groups(1)
    stranger.close()
    words = "process 1 of 3 was lost: it ended without a word; run the same command again"
    assert meeting.hear(0, 2) == [Abort(7, words, None)] * 2


def test_silence_is_a_lost_process(meet: Meet) -> None:
    meeting = meet(2, STRICT)
    with meeting.stranger(hello(1, 2)):
        meeting.groups(1)
        words = "process 1 of 2 was lost: no sign of life for 0.5 s; run the same command again"
        assert meeting.hear(0) == [Abort(7, words, None)]


def test_signs_of_life(meet: Meet) -> None:
    """Each side sends them again and again."""
    beats = b'{"beat": true}\n' * 3
    meeting = meet(2, dataclasses.replace(PATIENT, beat_seconds=0.05, ticks=400))
    with meeting.stranger(hello(1, 2)) as stranger:
        meeting.groups(1)
        wait_for(lambda: beats in stranger.recv(1 << 16, socket.MSG_PEEK))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        member = Member(listener.getsockname(), 1, 2, meeting.timing, lambda _: None)
        coordinator, _ = listener.accept()
        with coordinator:
            wait_for(lambda: beats in coordinator.recv(1 << 16, socket.MSG_PEEK))
        wait_for(member._closed.is_set)


@pytest.mark.parametrize("how", ["silent", "ended"])
def test_a_member_notices_that_process_0_is_lost(how: str) -> None:
    aborts: list[Abort] = []
    timing = STRICT if how == "silent" else PATIENT
    with socket.create_server(("127.0.0.1", 0)) as listener:
        member = Member(listener.getsockname(), 1, 2, timing, aborts.append)
        coordinator, _ = listener.accept()
        coordinator.sendall(b'{"welcome": true}\n')
        member.gather()
        if how == "ended":
            coordinator.close()
        wait_for(lambda: aborts)
        coordinator.close()
    why = {"silent": "no sign of life for 0.5 s", "ended": "it ended without a word"}[how]
    words = f"process 0 of 2 was lost: {why}; run the same command again"
    assert aborts == [Abort(7, words, None)]


@given(st.floats(0.5, 86400))
@example(60)
def test_who_falls_silent_has_ended_all_within_the_time_out(seconds: float) -> None:
    timing = share_out(seconds)
    leaving = timing.goodbye_seconds + timing.last_words_seconds
    assert timing.silence_seconds + leaving <= seconds * (1 + 1e-9)
    assert timing.silence_seconds > seconds / 2
    assert timing.ticks >= 5
    assert timing.goodbye_seconds <= 1


def test_the_usual_timing() -> None:
    assert share_out(60) == Timing(60, 5, 11, 1, 2)


def test_one_that_hangs_keeps_nobody_from_leaving_at_once(meet: Meet) -> None:
    """It takes nothing, though there is much for it to take."""
    meeting = meet(3)
    with meeting.stranger(hello(1, 3)) as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        coordinator, _ = meeting.groups(1)
        connection = meeting.coordinator._members[1]
        relay.start_thread(lambda: connection.send({"text": "x" * 10**8}), "much")
        begun = time.monotonic()
        coordinator.abort(Abort(130, "x", 0))
        assert time.monotonic() - begun < PATIENT.goodbye_seconds + 5
        assert meeting.hear(2) == [Abort(130, "x", 0)]


# --- Before all are there.


@pytest.mark.parametrize(
    ("count", "absent", "who"),
    [
        (2, {1}, "process 1 of 2 never started: nothing heard of it for 0.3 s"),
        (4, {1, 3}, "processes 1 and 3 of 4 never started: nothing heard of them for 0.3 s"),
        (5, {1, 2, 4}, "processes 1, 2 and 4 of 5 never started"),
    ],
)
def test_who_never_started_is_named_to_all(
    meet: Meet, count: int, absent: set[int], who: str
) -> None:
    meeting = meet(count, HURRIED)
    present = sorted(set(range(1, count)) - absent)
    members = [meeting.member(k) for k in present]
    wait_for(lambda: len(meeting.coordinator._members) == len(members))
    with pytest.raises(PeerLostError, match=who) as caught:
        meeting.coordinator.gather()
    abort = Abort(7, str(caught.value), None)
    assert meeting.hear(*present) == [abort] * len(members)


def test_process_0_that_never_started() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with pytest.raises(PeerLostError) as caught:
        Member(address, 1, 2, HURRIED, lambda _: None)
    assert str(caught.value).startswith(
        f"process 0 of 2 never started: 127.0.0.1 port {address[1]} cannot be reached (Connection "
        "refused) after 0.3 s; start all 2 at the same time, or raise parallel.peer_timeout_sec"
    )


def test_process_0_may_be_the_last_to_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with futures.ThreadPoolExecutor(1) as pool:
        member = pool.submit(Member, address, 1, 2, PATIENT, lambda _: None)
        time.sleep(0.3)
        coordinator = Coordinator(socket.create_server(address), 2, PATIENT, lambda _: None, 1)
        together(coordinator.gather, member.result(WAIT_SECONDS).gather)
        member.result().finish()
        coordinator.finish()


@pytest.mark.parametrize(
    ("index", "count", "kind", "words"),
    [
        (1, 3, UsageError, "process 1 was told of 3 processes, process 0 of 2; give all the same"),
        (2, 2, UsageError, "process 2 cannot connect to process 0 of 2"),
        (0, 2, UsageError, "process 0 cannot connect to process 0 of 2"),
    ],
)
def test_a_process_that_is_none_of_them_is_refused(
    meet: Meet, index: int, count: int, kind: type[Exception], words: str
) -> None:
    meeting = meet(2)
    wrong = Member(meeting.address, index, count, PATIENT, lambda _: None)
    with pytest.raises(kind, match=words):
        wrong.gather()
    meeting.groups()  # the right one is still expected


def test_two_processes_with_one_number(meet: Meet) -> None:
    meeting = meet(3)
    meeting.member(1)
    wait_for(lambda: meeting.coordinator._members)
    with pytest.raises(UsageError, match="two processes say that they are process 1 of 3; give"):
        meeting.member(1).gather()


def test_a_process_that_comes_too_late(meet: Meet) -> None:
    meeting = meet(2)
    meeting.groups()
    with pytest.raises(PeerLostError, match="the 2 processes have begun without it; wait until"):
        meeting.member(1).gather()
    assert meeting.aborts == {0: [], 1: []}


def test_a_process_may_be_started_again_while_the_others_wait(meet: Meet) -> None:
    meeting = meet(2)
    with meeting.stranger(hello(1, 2)):
        wait_for(lambda: meeting.coordinator._members)
    wait_for(lambda: not meeting.coordinator._members)
    assert all_gather(meeting.groups(), "x", "a", "b") == [["a", "b"]] * 2
    assert meeting.aborts == {0: [], 1: []}


class Pausing(threading.Condition):
    """Stops a thread that listens to a member when it has released the lock, once `armed`."""

    def __init__(self) -> None:
        super().__init__()
        self.armed, self.stopped, self.resume = (threading.Event() for _ in range(3))

    def __exit__(self, *error: Any) -> None:
        stops = self.armed.is_set() and threading.current_thread().name == "jaxtrain-member"
        super().__exit__(*error)
        if stops and not self.stopped.is_set():
            self.stopped.set()
            assert self.resume.wait(WAIT_SECONDS)


def test_a_process_that_vanishes_while_the_last_ones_come_is_not_counted(meet: Meet) -> None:
    meeting = meet(2)
    meeting.coordinator._changed = changed = Pausing()
    with meeting.stranger(hello(1, 2)):
        wait_for(lambda: meeting.coordinator._members)
        with changed:
            changed.armed.set()
    assert changed.stopped.wait(WAIT_SECONDS)
    with futures.ThreadPoolExecutor(1) as pool:
        gathering = pool.submit(meeting.coordinator.gather)
        time.sleep(0.1)
        assert not gathering.done()
        changed.resume.set()
        member = meeting.member(1)
        member.gather()
        gathering.result(WAIT_SECONDS)
    groups: list[Group] = [meeting.coordinator, member]
    assert all_gather(groups, "x", "a", "b") == [["a", "b"]] * 2


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b'{"jaxtrain": 1}\n', b"\n"])
def test_strangers_are_sent_away(meet: Meet, line: bytes) -> None:
    meeting = meet(2)
    with meeting.stranger(line) as stranger:
        assert stranger.recv(1) == b""
    assert all_gather(meeting.groups(), "x", "a", "b") == [["a", "b"]] * 2


# --- The wire and the relay.


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        two, _ = listener.accept()
    return one, two


class Waits:
    """A `poll` whose waits are in vain, but where the script has an x: then a message comes."""

    def __init__(self, script: str, sender: socket.socket) -> None:
        self.script = iter(script)
        self.sender = sender

    def register(self, *_: Any) -> None:
        pass

    def poll(self, milliseconds: float) -> bool:
        if comes := next(self.script) == "x":
            self.sender.sendall(b'{"beat": true}\n')
        return comes


def test_silence_is_counted_in_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as said, in a row."""
    one, two = tcp_pair()
    with one, two:
        waits = Waits("--x--xx-----", two)
        monkeypatch.setattr(wire.select, "poll", lambda: waits)
        messages = Connection(one).messages(1, 3)
        assert [next(messages) for _ in range(3)] == [{"beat": True}] * 3
        with pytest.raises(Silence):
            next(messages)
        assert "".join(waits.script) == "--"


def test_a_message_may_come_in_pieces() -> None:
    one, two = tcp_pair()
    with one, two:
        messages = Connection(one).messages(WAIT_SECONDS, 1)
        two.sendall(b'{"a": ')
        threading.Timer(0.1, two.sendall, [b'1}\n{"b": 2}\n']).start()
        assert [next(messages), next(messages)] == [{"a": 1}, {"b": 2}]
        two.shutdown(socket.SHUT_WR)
        assert list(messages) == []


def test_a_send_ends_though_nobody_takes_anything() -> None:
    one, two = tcp_pair()
    with one, two:
        Connection(one, send_seconds=1).send({"text": "x" * 10**8})


def test_the_relay_passes_on_both_ways_and_hides_the_end_of_the_service() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = relay.listen(lambda: socket.create_connection(listener.getsockname()))
        client = socket.create_connection(("127.0.0.1", port), WAIT_SECONDS)
        service, _ = listener.accept()
        client.sendall(b"up")
        assert service.recv(2) == b"up"
        service.sendall(b"down")
        assert client.recv(4) == b"down"
        service.close()
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.sendall(b"still open")
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.close()


def test_the_relay_tells_the_service_that_a_client_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = relay.listen(lambda: socket.create_connection(listener.getsockname()))
        client = socket.create_connection(("127.0.0.1", port), WAIT_SECONDS)
        service, _ = listener.accept()
        client.close()
        service.settimeout(WAIT_SECONDS)
        assert service.recv(1) == b""
        service.close()


def test_the_hub_joins_a_member_with_the_service() -> None:
    with socket.create_server(("127.0.0.1", 0)) as service:
        listener = socket.create_server(("127.0.0.1", 0))
        coordinator = Coordinator(listener, 2, PATIENT, lambda _: None, service.getsockname()[1])
        member = Member(listener.getsockname(), 1, 2, PATIENT, lambda _: None)
        together(coordinator.gather, member.gather)
        client = member.service_connection()
        client.sendall(b"early")
        server, _ = service.accept()
        assert server.recv(5) == b"early"
        server.sendall(b"answer")
        assert client.recv(6) == b"answer"
        client.close()
        server.close()
        member.finish()
        coordinator.finish()


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 400 Bad\r\n\r\n", b"5\n"])
def test_something_else_at_the_address_is_said(answer: bytes) -> None:
    aborts: list[Abort] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        member = Member(server.getsockname(), 1, 2, PATIENT, aborts.append)
        connection, _ = server.accept()
        with connection:
            connection.sendall(answer)
            wait_for(lambda: bool(aborts))
    assert aborts[0].status == 2
    assert "is not process 0 of a run; give --coordinator" in aborts[0].words
    wait_for(member._closed.is_set)


def test_another_protocol_of_json_is_no_welcome() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        member = Member(server.getsockname(), 1, 2, PATIENT, lambda abort: None)
        connection, _ = server.accept()
        with connection:
            connection.sendall(b'{"jsonrpc": "2.0"}\n')
            with pytest.raises(UsageError, match="is not process 0 of a run"):
                member.gather()
    wait_for(member._closed.is_set)


def test_many_missing_processes_are_counted() -> None:
    coordinator = Coordinator(socket.create_server(("127.0.0.1", 0)), 1000, HURRIED, print, 1)
    with pytest.raises(PeerLostError) as caught:
        coordinator.gather()
    assert "processes 1, 2, 3, 4, 5, 6, 7 and 992 more of 1000 never started" in str(caught.value)
    coordinator.finish()
