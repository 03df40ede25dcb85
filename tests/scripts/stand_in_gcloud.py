"""A `gcloud` whose TPU VM is folders and processes of this machine.

It takes the commands and flags that `scripts/tpu.sh` may use, and no others. The folder STAND_IN
has `cloud.json` (see `scripts.cloud.Cloud`), one home folder for each worker, and `calls.jsonl`,
one line for each call. As the real one does, it runs on all workers at once, mixes what they say,
and exits with the status of the first that failed.
"""

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

FOLDER = Path(os.environ.get("STAND_IN", "."))
sessions: list[subprocess.Popen[bytes]] = []
# Held while one starts, in a thread of its own, or a signal just then would leave it behind.
starting = threading.Lock()


@contextlib.contextmanager
def state(folder: Path) -> Iterator[dict[str, Any]]:
    """The state of the VM, to read and to change: whole, and by one process at a time."""
    path = folder / "cloud.json"
    with (folder / "cloud.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        values = json.loads(path.read_text()) if path.exists() else {}
        try:
            yield values
        finally:
            new = path.with_suffix(".new")
            new.write_text(json.dumps(values))
            new.rename(path)


def fail(message: str, status: int = 1) -> NoReturn:
    print(f"ERROR: (gcloud.compute.tpus) {message}", file=sys.stderr)
    sys.exit(status)


def parse(words: list[str]) -> argparse.Namespace:
    """The words of a call, as the real one takes them."""
    parser = argparse.ArgumentParser(prog="gcloud", allow_abbrev=False)
    kinds = parser.add_subparsers(dest="kind", required=True)
    verbs = {
        kind: kinds.add_parser(kind).add_subparsers(dest="verb", required=True)
        for kind in ("tpu-vm", "queued-resources")
    }

    def add(kind: str, verb: str, **flags: Any) -> None:
        command = verbs[kind].add_parser(verb, allow_abbrev=False)
        command.add_argument("names", nargs="+" if verb == "scp" else 1)
        command.add_argument("--zone", required=True)
        command.add_argument("--project")
        command.add_argument("--quiet", action="store_true")
        for flag, options in flags.items():
            command.add_argument("--" + flag.replace("_", "-"), **options)

    switch: dict[str, Any] = {"action": "store_true"}
    needed: dict[str, Any] = {"required": True}
    create: dict[str, Any] = {
        "accelerator_type": needed,
        "network": {},
        "subnetwork": {},
        "labels": {},
        "tags": {},
        "internal_ips": switch,
        "spot": switch,
    }
    remote: dict[str, Any] = {
        "worker": needed,
        "strict_host_key_checking": {"required": True, "choices": ["no"]},
        "no_user_output_enabled": switch,
        "internal_ip": switch,
    }
    add("tpu-vm", "create", **create, version=needed)
    add("tpu-vm", "describe", format=needed)
    add("tpu-vm", "delete")
    add("tpu-vm", "ssh", **remote, command=needed, ssh_flag={"action": "append"})
    add("tpu-vm", "scp", **remote, scp_flag={"action": "append"})
    add("queued-resources", "create", **create, runtime_version=needed, node_id=needed)
    add("queued-resources", "describe", format=needed)
    add("queued-resources", "delete", force=switch)
    return parser.parse_args(words)


def next_state(cloud: dict[str, Any], kind: str) -> str:
    """The state now; each question brings the next of those that are to come."""
    states = cloud["states"]
    now: str = states.pop(0) if len(states) > 1 else states[0]
    if not cloud["exists"] or now == "NOT_FOUND":
        fail("NOT_FOUND: the resource was not found")
    if now == "UNAVAILABLE":
        fail("the service does not answer")
    active = kind == "queued-resources" and now in ("READY", "REPAIRING")
    return "ACTIVE" if active else now


def describe(cloud: dict[str, Any], call: argparse.Namespace) -> str:
    """The fields that are asked for, as the service has them: it leaves out what is false."""
    made = cloud["made"]
    place = f"projects/p/locations/{call.zone}"
    fields = {
        "state": "",
        "state.state": "",
        "networkEndpoints.len()": str(cloud["workers"]),
        "acceleratorType": made.get("accelerator_type", "v5litepod-16"),
        "runtimeVersion": made.get("version") or made.get("runtime_version") or "v2-alpha-tpuv5",
        "queuedResource": f"{place}/queuedResources/pod" if made.get("node_id") else "",
        "schedulingConfig.spot": "True" if made.get("spot") else "",
        "schedulingConfig.preemptible": "",
        "networkConfig.network": made.get("network") or "projects/p/global/networks/default",
        "networkConfig.subnetwork": made.get("subnetwork") or "projects/p/subnetworks/default",
        "networkConfig.enableExternalIps": "" if made.get("internal_ips") else "True",
    }
    asked = call.format.removeprefix("value(").removesuffix(")").split(",")
    if asked[0].startswith("state"):
        fields[asked[0]] = next_state(cloud, call.kind)
    return "\t".join(fields[name] for name in asked)


def workers_of(cloud: dict[str, Any], which: str) -> list[int]:
    return list(range(cloud["workers"])) if which == "all" else [int(which)]


def environment(cloud: dict[str, Any], worker: int, home: Path) -> dict[str, str]:
    """What a process on that worker sees, and nothing else."""
    variables = {
        "HOME": str(home),
        "PATH": f"{home / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "AGENT_WORKER_NUMBER": str(worker),
        "JAX_PLATFORMS": "cpu",
        **cloud["environment"],
    }
    if cloud["workers"] > 1:
        # What JAX finds out by itself on the workers of a TPU.
        variables["JAX_COORDINATOR_ADDRESS"] = f"127.0.0.1:{cloud['port']}"
        variables["JAX_NUM_PROCESSES"] = str(cloud["workers"])
        variables["JAX_PROCESS_ID"] = str(worker)
    return variables


def session(cloud: dict[str, Any], worker: int, command: str) -> int:
    """A login: what it leaves in its own process group ends with it."""
    if worker in cloud["unreachable"]:
        print("ssh: connect to host 10.0.0.2 port 22: Connection timed out", file=sys.stderr)
        return 255
    home = FOLDER / f"worker-{worker}"
    with starting:
        process = subprocess.Popen(
            ["sh", "-c", command],
            cwd=home,
            env=environment(cloud, worker, home),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        sessions.append(process)
    status = process.wait()
    hang_up(process)
    return status


def hang_up(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGHUP)


def ssh(cloud: dict[str, Any], call: argparse.Namespace) -> int:
    # The real one splits the command at each blank, and ssh joins it again.
    command = " ".join(call.command.split(" "))
    workers = workers_of(cloud, call.worker)
    statuses = dict.fromkeys(workers, 0)

    def run(worker: int) -> None:
        statuses[worker] = session(cloud, worker, command)

    threads = [threading.Thread(target=run, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return next((status for status in statuses.values() if status), 0)


def scp(cloud: dict[str, Any], call: argparse.Namespace) -> int:
    *sources, target = call.names
    folder = target.removeprefix(cloud["name"] + ":")
    for worker in workers_of(cloud, call.worker):
        if worker in cloud["unreachable"]:
            print("ssh: connect to host 10.0.0.2 port 22: Connection timed out", file=sys.stderr)
            return 255
        home = FOLDER / f"worker-{worker}"
        if not (home / folder).is_dir():
            print(f"scp: {folder}: No such file or directory", file=sys.stderr)
            return 1
        for source in sources:
            shutil.copyfile(source, home / folder / Path(source).name)
    return 0


def change(cloud: dict[str, Any], call: argparse.Namespace) -> None:
    """What the service is asked for: it says it, or changes the state."""
    if call.verb == "describe":
        print(describe(cloud, call))
    elif call.verb == "create":
        if cloud["exists"]:
            fail("ALREADY_EXISTS: the resource exists")
        cloud["exists"] = True
        cloud["states"] = cloud["after_create"]
        cloud["made"] = vars(call)
        print("Create request issued", file=sys.stderr)
    elif call.verb == "delete":
        if not cloud["exists"]:
            fail("NOT_FOUND: the resource was not found")
        if call.kind == "queued-resources" and not call.force:
            fail("the queued resource has nodes; use --force")
        cloud["exists"] = False


def main() -> int:
    words = sys.argv[1:]
    with (FOLDER / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(words) + "\n")
    if words[:2] != ["compute", "tpus"]:
        fail(f"Invalid choice: {words[:2]}", 2)
    call = parse(words[2:])
    if not call.quiet or os.fstat(0).st_rdev != os.stat(os.devnull).st_rdev:
        fail("it would ask: Do you want to continue (Y/n)?")
    with state(FOLDER) as cloud:
        if call.verb not in ("scp",) and call.names != [cloud["name"]]:
            fail(f"NOT_FOUND: {call.names}")
        if call.verb not in ("ssh", "scp"):
            change(cloud, call)
            return 0
        if not cloud["exists"] or cloud["states"][0] in ("PREEMPTED", "TERMINATED", "STOPPED"):
            fail("the TPU is in an unusable state")
    return (ssh if call.verb == "ssh" else scp)(cloud, call)


def leave(signum: int, frame: object) -> None:
    starting.acquire()  # for good: nothing starts any more
    for process in sessions:
        hang_up(process)
    os._exit(128 + signum)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    sys.exit(main())
