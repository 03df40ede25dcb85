"""A TPU VM for the tests of `scripts/tpu.sh`: the stand-in `gcloud`, and what its workers do."""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ports import free_port

import jaxtrain
from scripts import stand_in_gcloud

ROOT = Path(__file__).resolve().parents[2]
TPU = ROOT / "scripts" / "tpu.sh"
TIMEOUT_SECONDS = 300
Completed = subprocess.CompletedProcess[str]

# Spaces, quotes of both kinds, and all that a shell would take for its own.
HARD = ["--config.data.augment=flip|pad_crop(4)", '--note=it\'s "$HOME"  `x` \\ * & ;', "--empty="]

# Where JAX asks for the number of the worker.
CURL = """#!/bin/sh
case "$*" in
  *Metadata-Flavor:Google*/attributes/agent-worker-number) printf '%s' "$AGENT_WORKER_NUMBER" ;;
  *) exit 22 ;;
esac
"""

# A new environment sees the packages of these tests, so that nothing has to be installed but the
# wheel, which comes before them.
PYTHON = """#!/bin/sh
[ "$*" = "-m venv venv" ] || exec {python} "$@"
{python} -m venv --without-pip venv
for site in venv/lib/python*/site-packages; do echo {site} >"$site/tests.pth"; done
"""

# In place of jaxtrain: trains until someone writes a status into `end`, and says what it was told.
JAXTRAIN = f"""#!{sys.executable}
import os, signal, sys, time
if sys.argv[1:] == ["--version"]:
    sys.exit(print("jaxtrain", 0))
def stop(signum, frame):
    print("saved and stopped", flush=True)
    os._exit(int(os.environ.get("STOP_STATUS", "75")))
signal.signal(signal.SIGTERM, stop)
print("words", sys.argv[1:], flush=True)
open("starts", "a").write("x")
while not os.path.exists("end"):
    time.sleep(0.05)
sys.exit(int(open("end").read()))
"""


# In place of pip: builds and installs nothing, and fails on the workers where `broken` is.
PIP = """#!/bin/sh
case "$*" in
  *"pip wheel"*) mkdir -p {dist} && touch {dist}/{wheel} ;;
  "-m venv venv")
    mkdir -p venv/bin && cp "$0" venv/bin/python && cp "$HOME/bin/program" venv/bin/jaxtrain ;;
  *"pip "*install*)
    echo "$*" >>pip-calls
    [ ! -e broken ] || {{ echo "no space left" >&2; exit 9; }} ;;
  *version*) echo "python 3, jax 0" ;;
esac
"""


def checkout(folder: Path, everything: bool = False) -> Path:
    """A copy of what `tpu.sh` needs of this checkout, with all of the package or its version."""
    for name in ("scripts", *(("configs", "jaxtrain") if everything else ())):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("jaxtrain/__init__.py", "pyproject.toml", "README.md", "LICENSE"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    return folder / "scripts" / "tpu.sh"


class Cloud:
    """A TPU VM that can be created, in a folder of a test.

    Args:
        folder: where its state, the homes of its workers and the calls of `gcloud` are.
        workers: how many hosts it has.
        script: the tpu.sh that it is used by.
    """

    def __init__(self, folder: Path, workers: int = 4, script: Path = TPU) -> None:
        self.folder = folder
        self.workers = workers
        self.script = script
        (folder / "bin").mkdir(parents=True)
        gcloud = folder / "bin" / "gcloud"
        words = shlex.join([sys.executable, stand_in_gcloud.__file__])
        write_script(gcloud, f'#!/bin/sh\nexec {words} "$@"\n')
        site = next(path for path in sys.path if path.endswith("site-packages"))
        for worker in range(workers):
            home = folder / f"worker-{worker}" / "bin"
            home.mkdir(parents=True)
            write_script(home / "curl", CURL)
            python = PYTHON.format(python=shlex.quote(sys.executable), site=shlex.quote(site))
            write_script(home / "python3", python)
        self.set(
            name="pod",
            workers=workers,
            exists=False,
            states=["READY"],
            after_create=["CREATING", "READY"],
            unreachable=[],
            port=free_port(),
            environment={},
            made={},
        )

    def set(self, **values: Any) -> None:
        """Changes the state of the VM: see the stand-in."""
        with stand_in_gcloud.state(self.folder) as state:
            state.update(values)

    def get(self, name: str) -> Any:
        with stand_in_gcloud.state(self.folder) as state:
            return state[name]

    def install(self, program: str = JAXTRAIN) -> None:
        """Has the VM ready, with a program in place of jaxtrain."""
        self.set(exists=True)
        for worker in range(self.workers):
            place = self.place(worker)
            (place / "venv" / "bin").mkdir(parents=True)
            write_script(place / "venv" / "bin" / "jaxtrain", program)
            (place / "worker.sh").write_bytes((TPU.parent / "tpu" / "worker.sh").read_bytes())

    def fake_pip(self) -> None:
        """Has `setup` install the program in place of jaxtrain."""
        dist = self.script.parents[1] / "dist"
        wheel = f"jaxtrain-{jaxtrain.__version__}-py3-none-any.whl"
        pip = PIP.format(dist=shlex.quote(str(dist)), wheel=wheel)
        write_script(self.folder / "bin" / "python3", pip)
        for worker in range(self.workers):
            home = self.folder / f"worker-{worker}" / "bin"
            write_script(home / "python3", pip)
            write_script(home / "program", JAXTRAIN)

    def place(self, worker: int) -> Path:
        """The folder of tpu.sh on a worker."""
        return self.folder / f"worker-{worker}" / "jaxtrain-worker"

    def start(
        self, *words: str, cwd: Path | None = None, **environment: str
    ) -> subprocess.Popen[str]:
        """Starts tpu.sh, with the VM's name and zone in its environment and no stdin to ask on."""
        variables = {k: v for k, v in os.environ.items() if not k.startswith(("TPU_", "JAX_"))}
        return subprocess.Popen(
            [str(self.script), *words],
            cwd=cwd or self.folder,
            env={
                **variables,
                "PATH": f"{self.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
                "STAND_IN": str(self.folder),
                "TPU_NAME": "pod",
                "TPU_ZONE": "us-west4-a",
                "TPU_POLL_SECONDS": "0",
                "TPU_STOP_SECONDS": "20",
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *words: str, **options: Any) -> Completed:
        """Runs tpu.sh to its end."""
        with self.start(*words, **options) as process:
            return finish(process)

    def follow(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Starts a run and follows it; it is there, and so is the log, when this returns."""
        process = self.start("train", "--config=mnist_mlp", "--follow", *words, **environment)
        self.wait_for("run/log", "words")
        wait_until(lambda: any("worker.sh logs" in call[-1] for call in self.calls()))
        return process

    def calls(self) -> list[list[str]]:
        """The words of every call of gcloud so far, without `compute tpus`."""
        path = self.folder / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line)[2:] for line in lines]

    def log(self, worker: int) -> str:
        return (self.place(worker) / "run" / "log").read_text()

    def end(self, status: int, *workers: int) -> None:
        """Ends the program in place of jaxtrain on some workers, on all if none is named."""
        for worker in workers or range(self.workers):
            (self.place(worker) / "end.part").write_text(str(status))
            (self.place(worker) / "end.part").rename(self.place(worker) / "end")

    def kill(self, worker: int, signum: int = signal.SIGTERM) -> None:
        """Sends a signal to jaxtrain on one worker, as a machine that goes down does."""
        os.kill(int((self.place(worker) / "run" / "pid").read_text()), signum)

    def wait_for(self, path: str, text: str = "") -> None:
        """Until every worker has that file in its folder, with that text in it."""
        files = [self.place(worker) / path for worker in range(self.workers)]
        wait_until(lambda: all(file.exists() and text in file.read_text() for file in files))

    def clean_up(self) -> None:
        """Kills what still runs on the workers."""
        for path in self.folder.glob("worker-*/jaxtrain-worker/run/pid"):
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(int(path.read_text()), signal.SIGKILL)


def finish(process: subprocess.Popen[str]) -> Completed:
    out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {seconds} seconds"
        time.sleep(0.02)


def write_script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def error(done: Completed, status: int) -> str:
    """The one line of an error of tpu.sh."""
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("tpu.sh: error: ")
    return done.stderr.removeprefix("tpu.sh: error: ").strip()


def processes_in(folder: Path) -> Iterator[int]:
    """Processes that run in a folder."""
    for path in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if path.readlink() == folder:
                yield int(path.parent.name)
        except OSError:
            continue
