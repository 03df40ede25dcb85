"""The step compiled for TPUs that are not here, by the real compiler, through the command.

That compiler is the wheel `libtpu`: 200 MB, and where it is installed every start of JAX looks for
TPUs and writes that there are none. So it is no part of the extra `dev`. Unless it is there anyway,
pip puts it once into a folder of pytest's cache, where only these tests find it.
"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(sys.executable).with_name("jaxtrain")
# A slice of 4; no loop of several steps, so that it takes a few seconds to compile.
SMALL = [
    "check",
    "--config=mnist_mlp",
    "--topology=v5e:2x2",
    "--config.model.mlp.hidden_sizes=64",
    "--config.model.mlp.dropout=0",
    "--config.train.steps_per_call=1",
    "--config.data.cache=memory",
]

pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="there is a TPU compiler for Linux on x86-64 only",
)


@pytest.fixture(scope="module")
def libtpu(request):
    """A folder with the TPU compiler that belongs to the installed JAX; None: no need of one."""
    if importlib.util.find_spec("libtpu"):
        return None
    (wanted,) = (
        re.split(r"\s*;", line)[0]
        for line in importlib.metadata.requires("jax")
        if line.startswith("libtpu")
    )
    folder = request.config.cache.mkdir(re.sub(r"[^\w.]+", "-", wanted).strip("-."))
    whole = folder / "whole"
    if not whole.exists():
        words = [sys.executable, "-m", "pip", "install", "--no-deps", "--upgrade", "--quiet"]
        subprocess.run([*words, "--target", str(folder), wanted], check=True)
        whole.touch()
    return folder


@pytest.fixture(scope="module")
def check(libtpu, tmp_path_factory):
    """Runs `jaxtrain` where nothing says what the machine is; nothing may be left behind."""
    folder = tmp_path_factory.mktemp("topology")

    def run(*words):
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("JAX_", "XLA_", "TPU_", "PYTHON"))
        }
        more = {} if libtpu is None else {"PYTHONPATH": str(libtpu)}
        more |= {
            "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        done = subprocess.run(
            [str(SCRIPT), *words],
            cwd=folder,
            env={**kept, **more},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert list(folder.iterdir()) == []
        return done

    return run


def test_a_step_that_fits(check):
    done = check(*SMALL, "--json")
    assert (done.returncode, done.stderr) == (
        0,
        "compiling the step for v5e:2x2, which takes seconds to minutes\n",
    )
    report = json.loads(done.stdout)
    assert report["ok"]
    assert report["devices"]["mesh"] == {"data": 4, "fsdp": 1, "model": 1}
    step = report["topology"]
    assert (step["name"], step["device_kind"]) == ("v5e:2x2", "TPU v5 lite")
    parameters = 784 * 64 + 64 + 64 * 10 + 10
    memory = step["memory"]
    assert memory["total"] == (
        memory["arguments"] + memory["temporaries"] + memory["outputs"] - memory["aliased"]
    )
    # A parameter and Adam's two numbers for it, and 32 images; padded to the chip's tiles.
    needed = 3 * 4 * parameters + 32 * 784
    assert needed < memory["arguments"] < 3 * needed
    # Two operations for each weight and row, forward and twice backward, but not to the images.
    products = 2 * 32 * (2 * 784 * 64 + 3 * 64 * 10)
    assert products < step["flops"] < 1.5 * products
    (reduced,) = step["collectives"]
    assert reduced["kind"] == "all-reduce"
    assert 4 * parameters <= reduced["bytes"] < 4 * parameters + 100


def test_fsdp_gathers_and_scatters(check):
    words = [
        "--config.parallel.mesh=fsdp=-1",
        "--config.parallel.rules=fsdp",
        "--config.model.mlp.hidden_sizes=1024",
        # For a small batch the compiler would rather gather the activations.
        "--config.train.batch_size=4096",
        "--config.schedule.warmup_steps=2",
    ]
    done = check(*SMALL, *words)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("topology "))
    assert re.fullmatch(
        r"topology    v5e:2x2 \(TPU v5 lite\): compiled in \d+ s; on each device:", lines[first]
    )
    kinds = {line.split()[0]: line.split()[1:] for line in lines[first + 5 : -1]}
    assert {"all-reduce", "reduce-scatter", "all-gather"} <= set(kinds)
    count, size = kinds["reduce-scatter"]
    assert int(count) >= 1
    assert int(size.replace(",", "")) >= 4 * 784 * 1024
    assert lines[-1].startswith("verdict     ok: ")


def test_a_step_that_does_not_fit(check):
    words = [
        "--config.model.mlp.hidden_sizes=40000,30000",
        "--config.train.batch_size=40000",
        "--config.schedule.warmup_steps=2",
    ]
    done = check(*SMALL, *words)
    assert done.returncode == 2
    verdict = done.stdout.splitlines()[-1]
    assert verdict.startswith("verdict     would fail: the step does not fit a device of v5e:2x2: ")
    needed, available = map(float, re.findall(r"(\d+\.\d+)G", verdict))
    assert needed > available == 15.75
    assert "; lower train.batch_size, raise train.accumulate or split the model" in verdict


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("v5e:2x3", "--topology=v5e:2x3 is no TPU slice (Topology layout"),
        ("v9:2x2", "--topology=v9:2x2 is no TPU slice (Invalid TPU"),
        ("v5litepod-32", "--topology=v5litepod-32 must be GENERATION:SHAPE; as in v5e:4x8"),
    ],
)
def test_a_slice_that_is_none(check, name, said):
    done = check("check", "--config=mnist_mlp", f"--topology={name}")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"jaxtrain: error: {said}")
    assert "v5e:4x8" in done.stderr


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is not None, reason="the TPU compiler is installed"
)
def test_no_compiler(tmp_path):
    done = subprocess.run(
        [str(SCRIPT), "check", "--config=mnist_mlp", "--topology=v5e:4x8"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",
        "jaxtrain: error: --topology needs the TPU compiler, which is not installed: pip install "
        "'jaxtrain[tpu]' (for Linux on x86-64)\n",
    )
