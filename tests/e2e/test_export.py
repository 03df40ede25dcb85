"""`jaxtrain export`: on all of MNIST every format has the checkpoint's numbers, run by itself."""

import csv
import dataclasses
import io
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e.command import Command, snapshot
from e2e.digits import first_digits

from jaxtrain.formats import FORMATS

pytestmark = pytest.mark.slow

MODELS = {
    "mlp": ["--config=mnist_mlp", "--config.train.steps=300", "--config.train.epochs=None"],
    "resnet": [
        "--config=mnist_resnet",
        "--config.model.resnet.width=0.5",
        "--config.data.augment=",
        "--config.optimizer.learning_rate=0.02",
        "--config.train.epochs=None",
        "--config.train.steps=300",
        "--config.schedule.warmup_epochs=None",
        "--config.schedule.warmup_steps=20",
    ],
}
ONLY_LAST = ["--config.eval.every_epochs=0", "--config.checkpoint.every_epochs=0"]
# What a program that loads the export must not need.
FOREIGN = {
    "savedmodel": ("jaxtrain", "jax", "flax"),
    "stablehlo": ("jaxtrain", "flax", "tensorflow"),
    "tflite": ("jaxtrain", "jax", "flax", "tensorflow"),
    "onnx": ("jaxtrain", "jax", "flax", "tensorflow", "onnx"),
}


@dataclasses.dataclass(frozen=True)
class Exported:
    """A run and its exports.

    Attributes:
        command: in the folder where both are.
        run: the run's folder in it.
        result: what training said.
        exports: what `export` said, by format; `tflite-int8` and `tflite-float16` too.
        predictions: rows of `eval --predictions`, in data order.
    """

    command: Command
    run: str
    result: dict[str, Any]
    exports: dict[str, dict[str, Any]]
    predictions: list[dict[str, str]]


@pytest.fixture(scope="module", params=MODELS)
def exported(new_command: Callable[[], Command], request: pytest.FixtureRequest) -> Exported:
    command = new_command()
    run = f"--workdir=runs/{request.param}"
    result = command.result("train", *MODELS[request.param], *ONLY_LAST, run)
    everything = ",".join(FORMATS)
    made = command.result("export", run, f"--format={everything}", "--output=models")
    exports = {each["format"]: each for each in made["exports"]}
    for quantize in ("int8", "float16"):
        words = ("--format=tflite", f"--quantize={quantize}", "--verify=all")
        (exports[f"tflite-{quantize}"],) = command.result("export", run, *words)["exports"]
    command.result("eval", run, "--predictions=test.csv")
    with (command.folder / "test.csv").open(newline="") as file:
        predictions = list(csv.DictReader(file))
    return Exported(command, run, result, exports, predictions)


@pytest.mark.parametrize("name", FORMATS)
def test_the_whole_test_set_has_the_same_accuracy(exported: Exported, name: str) -> None:
    path = exported.exports[name]["path"]
    scored = exported.command.result("eval", exported.run, f"--exported={path}")
    expected = exported.result["eval"]
    assert expected["count"] == 10000
    assert scored["eval"]["count"] == 10000
    assert scored["eval"]["accuracy"] == expected["accuracy"]
    assert scored["eval"]["loss"] == pytest.approx(expected["loss"], abs=1e-6)
    assert scored["step"] == exported.result["step"]
    images, _ = first_digits("t10k", 30)
    np.save(exported.command.folder / "some.npy", images)
    predicted = exported.command("predict", f"--exported={path}", "some.npy")
    assert predicted.returncode == 0, predicted.stderr
    rows = csv.DictReader(io.StringIO(predicted.stdout, newline=""))
    for row, wanted in zip(rows, exported.predictions[:30], strict=True):
        assert row["class"] == wanted["class"]
        assert float(row["probability"]) == pytest.approx(float(wanted["probability"]), abs=2e-6)
    kept = exported.command.folder / exported.run.removeprefix("--workdir=") / "eval"
    full = json.loads((kept / f"test-{scored['step']}-{name}.json").read_text())
    assert full["eval"] == scored["eval"]
    assert full["exported"] == path


@pytest.mark.parametrize(("quantize", "most"), [("int8", 0.01), ("float16", 0.001)])
def test_a_quantized_one_says_what_it_costs(exported: Exported, quantize: str, most: float) -> None:
    export = exported.exports[f"tflite-{quantize}"]
    assert export["path"].endswith(f"export/tflite-{quantize}-{exported.result['step']}")
    scored = exported.command.result("eval", exported.run, f"--exported={export['path']}")
    assert abs(scored["eval"]["accuracy"] - exported.result["eval"]["accuracy"]) <= most
    assert scored["eval"]["count"] == 10000
    proof = json.loads((exported.command.folder / export["path"] / "verification.json").read_text())
    assert proof["batches"][-1]["examples"] == 10000
    assert 0 < proof["largest_difference"] == export["largest_difference"]
    assert 1 - export["agreement"] <= 2 * most
    assert proof["tolerance"]["agreement"] == {"int8": 0.9, "float16": 0.98}[quantize]
    kept = exported.command.folder / exported.run.removeprefix("--workdir=") / "eval"
    assert (kept / f"test-{exported.result['step']}-tflite-{quantize}.json").is_file()
    size = (exported.command.folder / export["path"] / "model.tflite").stat().st_size
    whole = exported.command.folder / exported.exports["tflite"]["path"] / "model.tflite"
    assert size < {"int8": 0.6, "float16": 0.75}[quantize] * whole.stat().st_size


@pytest.mark.parametrize("name", FORMATS)
def test_it_says_what_it_is_and_that_it_was_compared(exported: Exported, name: str) -> None:
    folder = exported.command.folder / exported.exports[name]["path"]
    assert folder == exported.command.folder / "models" / name
    signature = json.loads((folder / "signature.json").read_text())
    assert signature["format"] == name
    assert signature["step"] == exported.result["step"]
    assert signature["input"] == {
        "name": "image",
        "dtype": "uint8",
        "shape": ["batch", 28, 28, 1],
    }
    assert json.loads((folder / "classes.json").read_text()) == list("0123456789")
    config = json.loads((folder / "config.json").read_text())
    assert config["train"]["steps"] == exported.result["step"]
    proof = json.loads((folder / "verification.json").read_text())
    assert [each["batch"] for each in proof["batches"]] == [1, 3, 256]
    assert proof["tolerance"] == {"difference": 1e-4, "agreement": 0.98}
    assert all(each["examples"] == each["same_class"] == 256 for each in proof["batches"])
    assert proof["largest_difference"] < 1e-5
    assert exported.exports[name]["agreement"] == 1
    on_disk = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert exported.exports[name]["bytes"] == pytest.approx(on_disk, rel=0.02)


@pytest.mark.parametrize("name", [*FORMATS, "tflite-int8", "tflite-float16"])
def test_the_readme_beside_it_has_a_program_that_works(exported: Exported, name: str) -> None:
    folder = exported.command.folder / exported.exports[name]["path"]
    (program,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    count = 20
    images, _ = first_digits("t10k", count)
    np.save(folder / "images.npy", images[..., np.newaxis])
    foreign = FOREIGN[name.partition("-")[0]]
    hidden = f"import sys\nfor name in {foreign}: sys.modules[name] = None\n"
    done = subprocess.run(
        [sys.executable, "-I", "-W", "error", "-c", hidden + program],
        cwd=folder,
        env={"PATH": "", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    (folder / "images.npy").unlink()
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == count
    if "-" in name:
        return  # how far it is from the checkpoint is in its verification
    for (said, probability), row in zip(lines, exported.predictions[:count], strict=True):
        assert said == row["class"]
        assert float(probability) == pytest.approx(float(row["probability"]), abs=2e-6)


@pytest.fixture(scope="module")
def small(new_command: Callable[[], Command]) -> Command:
    """A command beside a finished run of 20 steps in `run`."""
    command = new_command()
    command.result("train", "--config=digits.py", "--workdir=run")
    return command


def test_nothing_is_exported_beyond_the_tolerance(small: Command) -> None:
    done = small("export", "--workdir=run", "--format=stablehlo", "--tolerance=0", "--output=new")
    assert (done.returncode, done.stdout) == (6, "")
    assert re.search(
        r"\njaxtrain: error: stablehlo: a probability differs by \S+ from the checkpoint's, more "
        r"than 0; nothing is exported; accept it with --tolerance, or choose another format\n$",
        done.stderr,
    )
    assert not list(small.folder.glob("*new*")), "nothing under its name, and nothing beside it"


# An exporter that writes another model than it is given.
WRONG = """
import dataclasses, sys
import jax
from jaxtrain.formats import {name} as exporter
from jaxtrain.cli import entry
save = exporter.save
def wrong(source, folder, options):
    variables = jax.tree.map(lambda leaf: leaf {change}, source.variables)
    return save(dataclasses.replace(source, variables=variables), folder, options)
exporter.save = wrong
sys.argv[1:] = {words}
entry()
"""


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        *((name, "* 1.01", "a probability differs by ") for name in FORMATS),
        ("stablehlo", "* float('nan')", "a probability differs by nan"),
    ],
)
def test_another_model_is_found_out(small: Command, name: str, change: str, said: str) -> None:
    words = ("export", "--workdir=run", f"--format={name}", f"--output=wrong/{name}")
    program = WRONG.format(name=name, change=change, words=[*words, "--overwrite"])
    done = small(program=(sys.executable, "-c", program))
    assert (done.returncode, done.stdout) == (6, ""), done.stderr
    assert f"jaxtrain: error: {name}: {said}" in done.stderr
    assert list((small.folder / "wrong").iterdir()) == []


def test_the_export_that_is_there_survives_a_wrong_one(small: Command) -> None:
    words = ("export", "--workdir=run", "--format=stablehlo", "--output=good")
    small.result(*words)
    before = snapshot(small.folder / "good")
    program = WRONG.format(name="stablehlo", change="* -1", words=[*words, "--overwrite"])
    assert small(program=(sys.executable, "-c", program)).returncode == 6
    assert snapshot(small.folder / "good") == before


def test_an_export_is_replaced_only_when_asked(small: Command) -> None:
    words = ("export", "--workdir=run", "--format=stablehlo", "--output=twice")
    small.result(*words)
    before = snapshot(small.folder / "twice")
    done = small(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(
        "error: twice is there already; give --overwrite, or another --output\n"
    )
    assert snapshot(small.folder / "twice") == before
    small.result(*words, "--overwrite", "--verify=10")
    proof = json.loads((small.folder / "twice" / "verification.json").read_text())
    sizes = [(each["batch"], each["examples"]) for each in proof["batches"]]
    assert sizes == [(1, 10), (3, 10), (10, 10)], "no batch is larger than the examples"
    assert len(list(small.folder.glob("*twice*"))) == 1
    done = small("export", "--workdir=run", "--format=stablehlo", "--output=run", "--overwrite")
    assert done.returncode == 2
    assert "run is no export, and is left as it is" in done.stderr
    assert (small.folder / "run" / "result.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format=onnx,keras"], "--format='keras' is unknown: choose one of onnx, savedmodel, "),
        (["--format=onnx", "--quantize=int8"], "--quantize is set, but onnx does not read it; "),
        (["--format=tflite", "--quantize=int4"], "--quantize='int4' is unknown: choose one of "),
        (
            ["--format=stablehlo", "--platforms=gpu"],
            "--platforms=gpu does not say which kind: cuda",
        ),
        (["--format=stablehlo", "--platforms=npu"], "--platforms='npu' is unknown: choose one of"),
        (["--format=onnx,onnx"], "--format=onnx,onnx must be names with commas between them, each"),
        (["--format=onnx", "--tolerance=2"], "--tolerance=2 must be a difference in 0..1"),
        (["--format=onnx", "--verify=0"], "--verify=0 must be a whole number, 1 or more"),
        (["--format=onnx", "--output=gs://a/b"], "--output=gs://a/b must be a local folder"),
        (["--format=stablehlo", "--output=run/checkpoints/9"], "lies among checkpoints; give an"),
        (
            ["--format=stablehlo", "--output=digits.py/x"],
            "digits.py is no folder; give another --outpu",
        ),
        (
            ["--format=stablehlo", "--verify=some"],
            "--verify=some must be a whole number, 1 or more",
        ),
        (["--format=stablehlo", "--checkpoint=7"], "--checkpoint=7 is not in run/checkpoints: the"),
        ([], "no --format; give one or several"),
    ],
)
def test_bad_usage_is_one_line(small: Command, words: list[str], said: str) -> None:
    done = small("export", "--workdir=run", *words)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.count("\n") == 1
    assert said in done.stderr
    assert not (small.folder / "run" / "export").exists()


@pytest.mark.parametrize(
    ("name", "missing", "extra"),
    [
        ("savedmodel", "tensorflow", "tf"),
        ("tflite", "tensorflow", "tf"),
        ("onnx", "jax2onnx", "onnx"),
    ],
)
def test_a_missing_runtime_says_what_to_install(
    small: Command, name: str, missing: str, extra: str
) -> None:
    """Also where the export is only used."""
    folder = small.folder / f"made-{name}"
    if not folder.exists():
        small.result("export", "--workdir=run", f"--format={name}", f"--output={folder}")
    runtime = {"tflite": "ai_edge_litert", "onnx": "onnxruntime"}.get(name, missing)
    program = (
        f"import sys; sys.modules[{runtime!r}] = None; from jaxtrain.cli import entry; entry()"
    )
    words = ("predict", f"--exported={folder}", "digits.npy")
    np.save(small.folder / "digits.npy", first_digits("t10k", 3)[0])
    done = small(*words, program=(sys.executable, "-c", program))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert f"format {name} needs {runtime}" in done.stderr
    assert f"pip install 'jaxtrain[{extra}]'" in done.stderr


@pytest.mark.parametrize(
    ("name", "missing", "extra"),
    [
        ("savedmodel", "tensorflow", "tf"),
        ("tflite", "tensorflow", "tf"),
        ("onnx", "jax2onnx", "onnx"),
    ],
)
def test_a_missing_extra_says_what_to_install(
    small: Command, name: str, missing: str, extra: str
) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None; from jaxtrain.cli import entry; entry()"
    )
    words = ("export", "--workdir=run", f"--format={name}")
    done = small(*words, program=(sys.executable, "-c", program))
    assert (done.returncode, done.stdout) == (2, "")
    said = f"which is not installed; pip install 'jaxtrain[{extra}]'\n"
    assert re.search(rf"jaxtrain: error: format {name} needs {missing}( to export)?, ", done.stderr)
    assert done.stderr.endswith(said)


def test_a_stop_leaves_nothing_half_written(small: Command) -> None:
    words = ("export", "--workdir=run", "--format=stablehlo", "--output=stopped/it")
    stopped = small.folder / "stopped"
    # It is in the middle of the comparison until it is stopped.
    program = (
        "import sys, time; from jaxtrain import evaluation; "
        "evaluation.compare = lambda *_, **__: time.sleep(600); "
        f"sys.argv[1:] = {list(words)}; from jaxtrain.cli import entry; entry()"
    )
    with small.start(program=(sys.executable, "-c", program)) as process:
        deadline = time.monotonic() + 60
        while not list(stopped.glob(".it.*.tmp/signature.json")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.terminate()
        assert process.wait(60) == 75
    assert list(stopped.iterdir()) == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "signature.json").unlink(), "is not an export: it has no"),
        (lambda folder: (folder / "signature.json").write_text("{}"), "signature.json is damaged"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is damaged"),
        (
            lambda folder: (folder / "signature.json").write_text(
                (folder / "signature.json").read_text().replace('"stablehlo"', '"beside"')
            ),
            "format 'beside' is none of savedmodel, stablehlo, tflite, onnx; install the jaxtrain",
        ),
        (lambda folder: (folder / "model.stablehlo").write_bytes(b"no"), "model.stablehlo"),
        (lambda folder: (folder / "weights.npz").unlink(), "weights.npz"),
    ],
)
def test_a_damaged_export_is_named(
    small: Command, tmp_path: Path, spoil: Callable[[Path], None], said: str
) -> None:
    folder = tmp_path / "spoilt"
    words = ("--workdir=run", "--format=stablehlo", f"--output={folder}", "--verify=1")
    small.result("export", *words)
    spoil(folder)
    done = small("eval", "--workdir=run", f"--exported={folder}")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_an_export_has_one_checkpoints_weights(small: Command) -> None:
    done = small("eval", "--workdir=run", "--exported=any", "--checkpoint=20")
    assert done.returncode == 2
    assert "--exported=any and --checkpoint=20 name two models: drop one" in done.stderr
