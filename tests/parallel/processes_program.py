"""A stand-in for `jaxtrain train`, run by the real command: what several processes do together.

Words: the scenario, then those of the command.
"""

import os
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

from jaxtrain import cli
from jaxtrain.config import TrainRequest
from jaxtrain.errors import CheckpointError, DataError, Stopped, UsageError
from jaxtrain.parallel.processes.peers import Peers, start


def together(peers: Peers, turns: int = 10**6, pause_seconds: float = 0.01) -> None:
    """Real collectives, in which a process hangs or fails that waits for a lost one."""
    expected = list(range(peers.count))
    for turn in range(turns):
        gathered = multihost_utils.process_allgather(jnp.full(1, peers.index))
        assert gathered.ravel().tolist() == expected
        if turn == 2:
            Path(f"pid.{peers.index}.new").write_text(str(os.getpid()))
            Path(f"pid.{peers.index}.new").rename(f"pid.{peers.index}")
        time.sleep(pause_seconds)


def normal(peers: Peers) -> None:
    together(peers, 5)
    print("by Python")
    if peers.is_first:
        time.sleep(0.5)  # the others wait for it


def stopped(peers: Peers) -> None:
    together(peers, 3)
    raise Stopped("stopped after step 3 of 10")


def agrees(peers: Peers) -> None:
    """All that is exchanged before the first step; what is refused goes to the file `said.K`."""
    peers.agree("config", {"same": "x" * 10**6})
    assert peers.broadcast("name", f"from {peers.index}") == "from 0"
    peers.barrier("x")
    peers.prove_shared(Path())
    texts = {"equal": "1"} | ({"more": "2"} if peers.index == 1 else {})
    text = "x" * 500 + str(peers.index == 2) + "y" * 500
    folder = Path("mine" if peers.index == 1 else "ours")
    folder.mkdir(exist_ok=True)
    refusals = (
        lambda: peers.agree("data", texts),
        lambda: peers.agree("data", {"long": text}),
        lambda: peers.prove_shared(folder),
        lambda: peers.prove_shared(Path("not there" if peers.index == 2 else "ours")),
    )
    Path(f"said.{peers.index}").write_text("".join(f"{refusal(call)}\n" for call in refusals))


def refusal(call: Callable[[], None]) -> str:
    try:
        call()
    except UsageError as error:
        return str(error)
    return "not refused"


def unproven(peers: Peers) -> None:
    """One fails while the others prove that a folder is shared."""
    if peers.index == 1:
        while len(list(Path().glob(".seen-by-all-*"))) < peers.count - 1:
            time.sleep(0.05)
        raise DataError("file x is damaged")
    peers.prove_shared(Path())


def unconnected(peers: Peers) -> None:
    """Here JAX does not connect process 1 with the others: see `train`."""
    together(peers)


def bad_data(peers: Peers) -> None:
    together(peers, 3)
    if peers.index == 1:
        raise DataError("file x is damaged")
    together(peers)


def fault(peers: Peers) -> None:
    together(peers, 3)
    if peers.is_first:
        raise ZeroDivisionError("oops")
    together(peers)


def echo(peers: Peers) -> None:
    """A library's error that looks like a lost process, while all are there, is a fault too."""
    if peers.index == 1:
        raise CheckpointError("cannot be written") from RuntimeError("Barrier timed out")
    peers.barrier("never")


def endless(peers: Peers) -> None:
    def last_words() -> None:
        os.write(2, b"last words\n")

    peers.before_exit(last_words)
    together(peers)


def aborts(peers: Peers) -> None:
    if peers.index == 1:
        peers.abort(130, "left at a second signal")
        os._exit(130)
    together(peers)


def nothing(peers: Peers) -> None:
    """For processes that do not come so far."""


def does_not_connect(**_: Any) -> None:
    raise RuntimeError("no room for it")


def wait_for_all() -> None:
    """Until every process has come so far: Python and JAX are slow to start on a busy machine."""
    Path(f"here.{os.environ['JAX_PROCESS_ID']}").touch()
    while len(list(Path().glob("here.*"))) < int(os.environ["JAX_NUM_PROCESSES"]):
        time.sleep(0.05)


def train(request: TrainRequest) -> dict[str, Any] | None:
    if scenario != "nothing":
        wait_for_all()
    if scenario == "unconnected" and os.environ["JAX_PROCESS_ID"] == "1":
        jax.distributed.initialize = does_not_connect
    with start(request.processes, request.config.parallel.peer_timeout_seconds) as peers:
        globals()[scenario](peers)
    return {"count": peers.count} if peers.is_first else None


scenario = sys.argv.pop(1)
module = types.ModuleType("jaxtrain.train")
module.train = train  # type: ignore[attr-defined]
sys.modules[module.__name__] = module
cli.entry()
