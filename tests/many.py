"""Several JAX processes on this machine, for what they have to do together."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import compiling
from ports import free_port

TIMEOUT_SECONDS = 100

# What a program says goes by a file, since Gloo prints on stdout.
JOIN = """
import functools, sys
import jax
say = functools.partial(print, file=open(sys.argv.pop(), "w", buffering=1))
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", {devices})
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.config.update("jax_enable_preemption_service", False)
jax.distributed.initialize("127.0.0.1:{port}", {count}, int(sys.argv[1]))
"""


def run_processes(count: int, program: str, *words: str | Path, devices: int = 2) -> list[str]:
    """Runs a program in `count` processes that find each other, and returns what each says.

    Args:
        count: the processes.
        program: Python text; `sys.argv` has the words after the process's index, and `say` is what
            it prints with.
        words: its arguments.
        devices: CPU devices of each.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / str(index) for index in range(count)]
        _run(program, files, words, devices)
        return [file.read_text() for file in files]


def _run(program: str, files: list[Path], words: tuple[str | Path, ...], devices: int) -> None:
    join = JOIN.format(devices=devices, port=free_port(), count=len(files))
    environment = {n: v for n, v in os.environ.items() if not n.startswith(("JAX_", "XLA_"))}
    environment["XLA_FLAGS"] = compiling.QUICKLY
    environment["PYTHONPATH"] = str(Path(__file__).parent)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", join + program, str(index), *map(str, words), file],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for index, file in enumerate(files)
    ]
    try:
        ends = [process.communicate(timeout=TIMEOUT_SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    for process, (out, err) in zip(started, ends, strict=True):
        assert process.returncode == 0, out + err
