"""`jaxtrain export`: on all of MNIST every format has the checkpoint's numbers, run by itself."""

import csv
import dataclasses
import io
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e.command import Command, Completed, error, refusal, result, snapshot
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
        "--config.train.steps=150",
        "--config.schedule.warmup_epochs=None",
        "--config.schedule.warmup_steps=20",
    ],
}
ONLY_LAST = ["--config.eval.every_epochs=0", "--config.checkpoint.every_epochs=0"]
QUANTIZED = ("int8", "float16")
SOME = 30
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
        scored: what `eval --exported` said, by format, in a process that exported nothing.
        predicted: rows of `predict --exported` for the first digits, by format, likewise.
    """

    command: Command
    run: str
    result: dict[str, Any]
    exports: dict[str, dict[str, Any]]
    predictions: list[dict[str, str]]
    scored: dict[str, dict[str, Any]]
    predicted: dict[str, list[dict[str, str]]]


@pytest.fixture(scope="module", params=MODELS)
def exported(new_command: Callable[..., Command], request: pytest.FixtureRequest) -> Exported:
    command = new_command()
    run = f"--workdir=runs/{request.param}"
    trained = command.result("train", *MODELS[request.param], *ONLY_LAST, run)
    made = command.in_turn(
        ["export", run, f"--format={','.join(FORMATS)}", "--output=models"],
        *(
            ["export", run, "--format=tflite", f"--quantize={quantize}", "--verify=all"]
            for quantize in QUANTIZED
        ),
        ["eval", run, "--predictions=test.csv"],
    )
    whole, *quantized, _ = map(result, made)
    exports = {each["format"]: each for each in whole["exports"]}
    for quantize, each in zip(QUANTIZED, quantized, strict=True):
        (exports[f"tflite-{quantize}"],) = each["exports"]
    np.save(command.folder / "some.npy", first_digits("t10k", SOME)[0])
    paths = [f"--exported={each['path']}" for each in exports.values()]
    used = command.in_turn(
        *(["eval", run, path] for path in paths), *(["predict", path, "some.npy"] for path in paths)
    )
    return Exported(
        command,
        run,
        trained,
        exports,
        rows((command.folder / "test.csv").read_text()),
        dict(zip(exports, map(result, used[: len(paths)]), strict=True)),
        dict(zip(exports, map(printed_rows, used[len(paths) :]), strict=True)),
    )


def rows(text: str) -> list[dict[str, str]]:
    """The rows of a text of comma-separated values."""
    return list(csv.DictReader(io.StringIO(text, newline="")))


def printed_rows(done: Completed) -> list[dict[str, str]]:
    assert done.returncode == 0, done.stderr
    return rows(done.stdout)


@pytest.mark.parametrize("name", FORMATS)
def test_the_whole_test_set_has_the_same_accuracy(exported: Exported, name: str) -> None:
    path = exported.exports[name]["path"]
    scored = exported.scored[name]
    expected = exported.result["eval"]
    assert expected["count"] == 10000
    assert scored["eval"]["count"] == 10000
    assert scored["eval"]["accuracy"] == expected["accuracy"]
    assert scored["eval"]["loss"] == pytest.approx(expected["loss"], abs=1e-6)
    assert scored["step"] == exported.result["step"]
    for row, wanted in zip(exported.predicted[name], exported.predictions[:SOME], strict=True):
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
    scored = exported.scored[f"tflite-{quantize}"]
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
def small(new_command: Callable[..., Command]) -> Command:
    """A command beside a finished run of 20 steps in `run`."""
    command = new_command(quickly=True)
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


# Exporters that write another model than they are given.
WRONG = """
import dataclasses, functools, importlib
import jax
def wrong(save, source, folder, options):
    variables = jax.tree.map(lambda leaf: leaf {change}, source.variables)
    return save(dataclasses.replace(source, variables=variables), folder, options)
for name in {names}:
    exporter = importlib.import_module("jaxtrain.formats." + name)
    exporter.save = functools.partial(wrong, exporter.save)
"""


@pytest.mark.parametrize(
    ("names", "change", "said"),
    [
        (list(FORMATS), "* 1.01", "a probability differs by "),
        (["stablehlo"], "* float('nan')", "a probability differs by nan"),
    ],
)
def test_another_model_is_found_out(
    small: Command, names: list[str], change: str, said: str
) -> None:
    words = ["export", "--workdir=run", "--overwrite"]
    ends = small.in_turn(
        *([*words, f"--format={name}", f"--output=wrong/{name}"] for name in names),
        before=WRONG.format(names=names, change=change),
    )
    for done, name in zip(ends, names, strict=True):
        assert (done.returncode, done.stdout) == (6, ""), done.stderr
        assert f"jaxtrain: error: {name}: {said}" in done.stderr
    assert list((small.folder / "wrong").iterdir()) == []


def test_the_export_that_is_there_survives_a_wrong_one(small: Command) -> None:
    words = ("export", "--workdir=run", "--format=stablehlo", "--output=good")
    small.result(*words)
    before = snapshot(small.folder / "good")
    wrong = WRONG.format(names=["stablehlo"], change="* -1")
    (done,) = small.in_turn([*words, "--overwrite"], before=wrong)
    assert done.returncode == 6
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


REFUSED = [
    (["--format=onnx,keras"], "--format='keras' is unknown: choose one of onnx, savedmodel, "),
    (["--format=onnx", "--quantize=int8"], "--quantize is set, but onnx does not read it; "),
    (["--format=tflite", "--quantize=int4"], "--quantize='int4' is unknown: choose one of "),
    (["--format=stablehlo", "--platforms=gpu"], "--platforms=gpu does not say which kind: cuda"),
    (["--format=stablehlo", "--platforms=npu"], "--platforms='npu' is unknown: choose one of"),
    (["--format=onnx,onnx"], "--format=onnx,onnx must be names with commas between them, each"),
    (["--format=onnx", "--tolerance=2"], "--tolerance=2 must be a difference in 0..1"),
    (["--format=onnx", "--verify=0"], "--verify=0 must be a whole number, 1 or more"),
    (["--format=onnx", "--output=gs://a/b"], "--output=gs://a/b must be a local folder"),
    (["--format=stablehlo", "--output=run/checkpoints/9"], "lies among checkpoints; give an"),
    (["--format=stablehlo", "--output=digits.py/x"], "digits.py is no folder; give another --outp"),
    (["--format=stablehlo", "--verify=some"], "--verify=some must be a whole number, 1 or more"),
    (["--format=stablehlo", "--checkpoint=7"], "--checkpoint=7 is not in run/checkpoints: the"),
    ([], "no --format; give one or several"),
]


def test_bad_usage_is_one_line(small: Command) -> None:
    done = small.in_turn(*(["export", "--workdir=run", *words] for words, _ in REFUSED))
    for each, (_, said) in zip(done, REFUSED, strict=True):
        assert said in refusal(each)
    assert not (small.folder / "run" / "export").exists()


def without(*modules: str) -> str:
    """A program after which these cannot be imported."""
    return f"import sys; sys.modules.update(dict.fromkeys({modules}))\n"


def test_a_missing_runtime_says_what_to_install(small: Command) -> None:
    """Also where the export is only used."""
    needs = {
        "savedmodel": ("tensorflow", "tf"),
        "tflite": ("ai_edge_litert", "tf"),
        "onnx": ("onnxruntime", "onnx"),
    }
    words = (f"--format={','.join(needs)}", "--output=made", "--verify=1")
    small.result("export", "--workdir=run", *words)
    np.save(small.folder / "digits.npy", first_digits("t10k", 3)[0])
    ends = small.in_turn(
        *(["predict", f"--exported=made/{name}", "digits.npy"] for name in needs),
        before=without(*(runtime for runtime, _ in needs.values())),
    )
    for done, (name, (runtime, extra)) in zip(ends, needs.items(), strict=True):
        said = refusal(done)
        assert f"format {name} needs {runtime}" in said
        assert f"pip install 'jaxtrain[{extra}]'" in said


def test_a_missing_extra_says_what_to_install(small: Command) -> None:
    needs = {
        "savedmodel": ("tensorflow", "tf"),
        "tflite": ("tensorflow", "tf"),
        "onnx": ("jax2onnx", "onnx"),
    }
    ends = small.in_turn(
        *(["export", "--workdir=run", f"--format={name}"] for name in needs),
        before=without(*(missing for missing, _ in needs.values())),
    )
    for done, (name, (missing, extra)) in zip(ends, needs.items(), strict=True):
        said = error(done, 2)
        assert re.match(rf"format {name} needs {missing}( to export)?, ", said)
        assert said.endswith(f"which is not installed; pip install 'jaxtrain[{extra}]'")


def test_a_stop_leaves_nothing_half_written(small: Command) -> None:
    words = ("export", "--workdir=run", "--format=stablehlo", "--output=stopped/it")
    stopped = small.folder / "stopped"
    # It is in the middle of the comparison until it is stopped.
    program = (
        "import sys, time; from jaxtrain import runtimes; "
        "runtimes.compare = lambda *_, **__: time.sleep(600); "
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


@pytest.fixture(scope="module")
def whole(small: Command) -> Path:
    """An export that is used as it is."""
    folder = small.folder / "whole"
    words = ("--workdir=run", "--format=stablehlo", f"--output={folder}", "--verify=1")
    small.result("export", *words)
    small.result("eval", "--workdir=run", f"--exported={folder}")
    return folder


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
    small: Command, whole: Path, tmp_path: Path, spoil: Callable[[Path], None], said: str
) -> None:
    folder = shutil.copytree(whole, tmp_path / "spoilt")
    spoil(folder)
    assert said in small.refused("eval", "--workdir=run", f"--exported={folder}")


def test_an_export_has_one_checkpoints_weights(small: Command) -> None:
    done = small("eval", "--workdir=run", "--exported=any", "--checkpoint=20")
    assert done.returncode == 2
    assert "--exported=any and --checkpoint=20 name two models: drop one" in done.stderr
