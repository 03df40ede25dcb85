"""Measures the numbers in README.md on this machine.

    python scripts/benchmark.py accuracy    test accuracy of configs/mnist_mlp.py over five seeds
    python scripts/benchmark.py loop        the training loop over a bare step; what a save costs
    python scripts/benchmark.py resnet_loop the same of configs/mnist_resnet.py, without the saves
    python scripts/benchmark.py start       process start to first finished step
    python scripts/benchmark.py export      test accuracy of exported models; needs '.[tf,onnx]'
    python scripts/benchmark.py keras       the whole command over Keras's time; needs keras
    python scripts/benchmark.py images      reading JPEG files; tf.data and PyTorch where they are
    python scripts/benchmark.py --all       all of them, which takes a while

The accuracy of another recipe, with any flag of `jaxtrain train` after `--`:

    python scripts/benchmark.py accuracy --recipe=mnist_mlp_best --runs=3
    python scripts/benchmark.py accuracy --recipe=mnist_resnet --runs=3
    python scripts/benchmark.py accuracy --recipe=fashion_mnist_resnet --runs=3

PyTorch may lie in an environment of its own: `images --torch=/path/to/its/python`.

Run it with the Python that jaxtrain is installed in. It ends with a Markdown table of medians, with
the least and the greatest value in brackets. What is compared takes turns, so that other load on
the machine hits both sides; still, measure on a machine that is as quiet as you can make it.
"""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxtrain import data
from jaxtrain.config import load_recipe, resolve

HERE = pathlib.Path(__file__).parent
RECIPE = "mnist_mlp"
TARGETS = {
    RECIPE: "≥ 98.4 %",
    "mnist_mlp_best": "≥ 99.4 %",
    "mnist_resnet": "≥ 99.6 %",
    "fashion_mnist_resnet": "≥ 94 %",
}
PACKAGES = (
    "jaxtrain",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "numpy",
    "pillow",
    "simplejpeg",
    "cykooz-resizer",
    "keras",
    "tensorflow-cpu",
)

# Runs `jaxtrain` in a process with an importable package called tensorflow, which says so.
WITHOUT_TENSORFLOW = """
import json, pathlib, sys, tempfile

with tempfile.TemporaryDirectory() as folder:
    package = pathlib.Path(folder) / "tensorflow"
    package.mkdir()
    (package / "__init__.py").write_text("")
    sys.path.insert(0, folder)
    from jaxtrain.cli import main
    status = main()
print(json.dumps({"status": status, "loaded": "tensorflow" in sys.modules}))
"""


class Row(NamedTuple):
    """One line of the table."""

    what: str
    result: str
    target: str
    runs: str


def accuracy(runs: int, recipe: str = RECIPE, flags: Sequence[str] = ()) -> list[Row]:
    """Test accuracy at the last step, once a seed; it depends on nothing else."""
    config, _ = resolve(load_recipe(recipe), {})
    values, minutes = [], []
    for seed in range(runs):
        with workdir() as path:
            result = train(path, f"--config.seed={seed}", *flags, recipe=recipe)
        values.append(100 * result["eval"]["accuracy"])
        minutes.append(result["seconds"] / 60)
        say(f"seed {seed}: {values[-1]:.2f} % after {result['step']} steps, {minutes[-1]:.1f} min")
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    listed = ", ".join(f"{value:.2f}" for value in values)
    return [
        Row(
            f"{recipe}: test accuracy, last step of {config.train.epochs:g} epochs",
            f"**{statistics.mean(values):.2f} %** ± {deviation:.2f} ({listed})",
            TARGETS.get(recipe, ""),
            f"{len(values)} seeds, mean ± standard deviation",
        ),
        Row(f"{recipe}: minutes", spread(minutes, ".1f"), "", "the same"),
    ]


def loop(runs: int) -> list[Row]:
    """Speed of the training loop between saves over a bare step's, and what a save costs."""
    return [*loop_ratio(runs, RECIPE, chunk=50, group=4, groups=20), *saves(runs)]


def resnet_loop(runs: int) -> list[Row]:
    """Speed of the training loop of a ResNet over a bare step's."""
    return loop_ratio(runs, "mnist_resnet", chunk=5, group=2, groups=10)


def loop_ratio(runs: int, recipe: str, *, chunk: int, group: int, groups: int) -> list[Row]:
    """The loop over the bare step, in pairs of `group` chunks of `chunk` steps that take turns."""
    ratios, speeds, bare_speeds = [], [], []
    for _ in range(runs):
        chunks = child("loop.py", recipe, chunk, group * groups)["chunks"]
        for i in range(0, group * groups, group):
            seconds, bare = (total(chunks[i : i + group], k) for k in ("seconds", "bare_seconds"))
            ratios.append(bare / seconds)
            speeds.append(chunk * group / seconds)
            bare_speeds.append(chunk * group / bare)
        say(f"loop over bare step: {spread(ratios, '.3f')}; steps/s {spread(speeds, '.1f')}")
    return [
        Row(
            f"{recipe}: training loop / bare jitted step, between saves",
            f"**{spread(ratios, '.3f')}**",
            "≥ 0.95",
            f"{len(ratios)} pairs of {chunk * group} steps in {runs} processes",
        ),
        Row("training loop, steps/s", spread(speeds, ".1f"), "", "the same"),
        Row("bare jitted step, steps/s", spread(bare_speeds, ".1f"), "", "the same"),
    ]


def saves(runs: int) -> list[Row]:
    """What a save costs the loop, with one in every second chunk of an epoch's steps."""
    epoch, pairs = 469, 10
    saves, costs = [], []
    for _ in range(runs):
        chunks = child("loop.py", RECIPE, epoch, 2 * pairs, 2 * epoch)["chunks"]
        relative = [each["seconds"] / each["bare_seconds"] for each in chunks]
        saving = [each["save_seconds"] > 0 for each in chunks]
        plain = statistics.median(r for r, save in zip(relative, saving, strict=True) if not save)
        costs += [100 * (r / plain - 1) for r, save in zip(relative, saving, strict=True) if save]
        saves += [1000 * each["save_seconds"] for each in chunks if each["save_seconds"]]
        say(f"a save: {spread(saves, '.0f')} ms; of {epoch} steps: {spread(costs, '.1f')} %")
    return [
        Row("a save, as the loop sees it, ms", spread(saves, ".0f"), "", f"{len(saves)} saves"),
        Row(
            f"a save every {epoch} steps costs, % of their time",
            spread(costs, ".1f"),
            "",
            f"{len(costs)} pairs of {epoch} steps",
        ),
    ]


def start(runs: int) -> list[Row]:
    """Process start to the end of the first step, by the clock in metrics.jsonl.

    With a report after every step, the time in the first line is when the first step's loss was on
    the host, which the loop asks for once four more steps are sent: a little late, never early.
    """
    short = ("--config.train.epochs=None", "--config.train.steps=210")
    every = "--config.report.every_steps=1"
    seconds = []
    for run in range(runs + 1):
        with workdir() as path:
            began = time.time()
            train(path, every, *short)
            first = json.loads((path / "metrics.jsonl").read_text().partition("\n")[0])
        assert first["step"] == 1, first
        if run:  # the first one leaves .pyc files and warms the disk's cache
            seconds.append(first["time"] - began)
            say(f"first step finished after {seconds[-1]:.2f} s")
    with workdir() as path:
        words = ["train", f"--config={RECIPE}", f"--workdir={path}", *short]
        said = run_json([sys.executable, "-c", WITHOUT_TENSORFLOW, *words])
    assert said["status"] == 0, said
    tensorflow = "imported" if said["loaded"] else "never imported"
    return [
        Row("process start to first finished step, s", f"**{spread(seconds, '.2f')}**", "< 3",
            f"{runs} processes"),
        Row("TensorFlow while training", tensorflow, "never imported", "1 process"),
    ]  # fmt: skip


def keras(runs: int) -> list[Row]:
    """The whole command against Keras doing the same, as processes that take turns."""
    if importlib.util.find_spec("keras") is None:
        sys.exit("the comparison needs Keras: pip install keras")
    ratios, ours, theirs, accuracies = [], [], [], []
    with workdir() as folder:
        folder.mkdir()
        recipe, mnist = prepare_keras(folder)
        for run in range(runs + 1):
            with workdir() as path:
                our_seconds, _ = timed(lambda path=path: train(path))
            with workdir() as path:
                path.mkdir()
                their_seconds, result = timed(
                    lambda path=path: child("keras_mnist.py", recipe, mnist, path)
                )
            if run:  # the first pair leaves .pyc files and warms the disk's cache
                ours.append(our_seconds)
                theirs.append(their_seconds)
                ratios.append(our_seconds / their_seconds)
                accuracies.append(100 * result["accuracy"])
                say(f"jaxtrain {ours[-1]:.1f} s, Keras {theirs[-1]:.1f} s: {ratios[-1]:.3f}")
    return [
        Row("10 epochs, evaluated and saved after each: jaxtrain / Keras 3 (JAX), whole processes",
            f"**{spread(ratios, '.2f')}**", "≤ 0.75", f"{runs} pairs"),
        Row("jaxtrain, s", spread(ours, ".1f"), "", "the same"),
        Row("Keras, s", spread(theirs, ".1f"), "", "the same"),
        Row("Keras's test accuracy, %", spread(accuracies, ".2f"), "", "the same"),
    ]  # fmt: skip


def prepare_keras(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Writes the recipe and MNIST (not compressed, the quickest to read) for the Keras script."""
    config, _ = resolve(load_recipe(RECIPE), {})
    recipe = {
        "units": config.model.mlp.hidden_sizes[0],
        "dropout": config.model.mlp.dropout,
        "learning_rate": config.optimizer.learning_rate,
        "warmup_steps": config.schedule.warmup_steps,
        "batch_size": config.train.batch_size,
        "epochs": int(config.train.epochs),
        "eval_batch_size": config.eval.batch_size,
        "seed": config.seed,
    }
    (folder / "recipe.json").write_text(json.dumps(recipe))
    dataset = data.open_dataset(config.data)
    np.savez(
        folder / "mnist.npz",
        train_images=dataset.train.images,
        train_labels=dataset.train.labels,
        test_images=dataset.eval.images,
        test_labels=dataset.eval.labels,
    )
    return folder / "recipe.json", folder / "mnist.npz"


def images(runs: int, torch_python: str | None = None) -> list[Row]:
    """Reading 500x375 JPEG files as random parts of 224x224, in batches of 64, by two threads."""
    if torch_python is None and importlib.util.find_spec("torchvision") is not None:
        torch_python = sys.executable
    result = child("images.py", runs, torch_python or "-")
    measured: dict[str, list[dict[str, float]]] = result["measured"]
    rows = []
    for ours, theirs, wanted in (
        ("none", "tf.data", "≥ 1"),
        ("none", "tf.data antialiased", ""),  # as all of ours are
        ("none", "torch", "≥ 2"),
        ("memory", "tf.data", "≥ 3"),
        ("disk", "tf.data", "≥ 3"),
    ):
        if theirs not in measured:
            say(f"{theirs} is not here, and is left out")
            continue
        pairs = list(zip(measured[ours], measured[theirs], strict=True))
        speeds = [a["images_per_second"] / b["images_per_second"] for a, b in pairs]
        work = [b["cpu_seconds_per_image"] / a["cpu_seconds_per_image"] for a, b in pairs]
        what = f"images/s, data.cache={ours} / {theirs}"
        rows.append(Row(what, f"**{spread(speeds, '.2f')}**", wanted, f"{runs} pairs"))
        rows.append(Row(f"{what}, by time of all cores", spread(work, ".2f"), "", "the same"))
    for name, each in measured.items():
        what = name if name.startswith(("tf.data", "torch")) else f"data.cache={name}"
        speeds = [one["images_per_second"] for one in each]
        rows.append(Row(f"{what}, images/s", spread(speeds, ".0f"), "", f"{runs} rounds"))
        memory = [one["bytes"] / 1e6 for one in each]
        text = f"{memory[0]:.0f}, then up to {max(memory):.0f}"
        rows.append(Row(f"{what}, MB in memory after an epoch", text, "flat", "the same"))
    rows.append(Row("mean size of a file, kB", f"{result['mean_bytes'] / 1e3:.0f}", "", ""))
    return rows


def export(runs: int) -> list[Row]:
    """Test accuracy of a model and of its exports, each in its own runtime."""
    command = pathlib.Path(sys.executable).with_name("jaxtrain")
    rows = []
    for _ in range(runs):
        with workdir() as path:
            run = f"--workdir={path}"
            trained = train(path)["eval"]["accuracy"]
            for words in (
                ["--format=savedmodel,stablehlo,tflite,onnx", f"--output={path / 'export'}"],
                ["--format=tflite", "--quantize=float16"],
                ["--format=tflite", "--quantize=int8"],
            ):
                quantized = [word for word in words if word.startswith("--quantize")]
                for made in run_json([command, "export", run, *words])["exports"]:
                    scored = run_json([command, "eval", run, f"--exported={made['path']}"])
                    accuracy_text = f"{100 * scored['eval']['accuracy']:.2f} %"
                    name = " ".join([made["format"], *quantized])
                    say(f"{name}: {accuracy_text}")
                    rows.append(Row(name, accuracy_text, f"{100 * trained:.2f} %", "1 run"))
    return rows


def train(path: pathlib.Path, *flags: str, recipe: str = RECIPE) -> dict[str, Any]:
    """Runs the installed `jaxtrain train` on a recipe and returns its result."""
    command = pathlib.Path(sys.executable).with_name("jaxtrain")
    return run_json([command, "train", f"--config={recipe}", f"--workdir={path}", *flags])


def child(script: str, *arguments: object) -> dict[str, Any]:
    """Runs a script beside this one in a process of its own and returns what it prints."""
    return run_json([sys.executable, HERE / "benchmark" / script, *arguments])


def run_json(command: Sequence[object]) -> dict[str, Any]:
    """Runs a command and returns the JSON object in the last line of its standard output."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


@contextlib.contextmanager
def workdir() -> Iterator[pathlib.Path]:
    """A path where nothing is yet, removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="jaxtrain-benchmark-") as folder:
        yield pathlib.Path(folder) / "run"


def timed(run: Callable[[], dict[str, Any]]) -> tuple[float, dict[str, Any]]:
    """Seconds that `run` takes, and what it returns."""
    began = time.perf_counter()
    result = run()
    return time.perf_counter() - began, result


def total(chunks: Sequence[dict[str, float]], name: str) -> float:
    """Sum of one value of all chunks."""
    return sum(chunk[name] for chunk in chunks)


def spread(values: Sequence[float], form: str) -> str:
    """Median, least and greatest."""
    return f"{statistics.median(values):{form}} [{min(values):{form}}, {max(values):{form}}]"


def say(text: str) -> None:
    """Shows progress."""
    print(text, file=sys.stderr, flush=True)


def machine() -> str:
    """What the numbers were measured on."""
    model = platform.processor() or platform.machine()
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    versions = []
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{package} {importlib.metadata.version(package)}")
    python = f"Python {platform.python_version()}"
    return f"{model}, {os.cpu_count()} cores, {platform.system()}, {python}, {', '.join(versions)}"


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    lines = ["| | median [least, greatest] | wanted | runs |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


MEASUREMENTS = {
    "accuracy": (accuracy, 5),
    "loop": (loop, 3),
    "resnet_loop": (resnet_loop, 3),
    "start": (start, 7),
    "export": (export, 1),
    "keras": (keras, 5),
    "images": (images, 9),
}


def main() -> None:
    """Measures what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("measurement", nargs="*", help=", ".join(MEASUREMENTS))
    parser.add_argument("--all", action="store_true", help="measure everything")
    parser.add_argument("--recipe", help=f"whose accuracy; {RECIPE} unless said")
    parser.add_argument("--torch", help="the Python that has torch and torchvision, for images")
    parser.add_argument("--runs", type=int, help="how often; each measurement has its own default")
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    given, flags = parser.parse_args(words[:end]), words[end + 1 :]
    names = list(MEASUREMENTS) if given.all else given.measurement
    if not names or not set(names) <= set(MEASUREMENTS):
        parser.error(f"say what to measure: {', '.join(MEASUREMENTS)} or --all")
    if given.runs is not None and given.runs < 1:
        parser.error("--runs must be 1 or more")
    if (given.recipe or flags) and "accuracy" not in names:
        parser.error("--recipe and flags after -- are for accuracy")
    if given.torch and "images" not in names:
        parser.error("--torch is for images")
    rows = []
    for name in names:
        measure, runs = MEASUREMENTS[name]
        say(f"{name}: {measure.__doc__.partition(chr(10))[0]}")
        chosen = {"accuracy": (given.recipe or RECIPE, flags), "images": (given.torch,)}.get(
            name, ()
        )
        rows += measure(given.runs or runs, *chosen)
    load = f", load average {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    print(f"{machine()}\n\n{table(rows)}")
    say(f"measured on{load}")


if __name__ == "__main__":
    main()
