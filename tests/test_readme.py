"""The README's commands and examples: what is copied from it works."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxtrain import errors
from jaxtrain.cli.words import read_words
from jaxtrain.config import load_recipe, resolve
from jaxtrain.workdir import default_path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
COMMANDS = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]


def section(title: str) -> str:
    """The text under a heading."""
    return README.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_the_check_of_a_change_runs_the_set_up_commands() -> None:
    script = ROOT / ".ci" / "run"
    set_up = [command for command in COMMANDS if command.startswith("pip install")]
    assert set_up == [
        "pip install . && jaxtrain train --config=configs/mnist_mlp.py",
        "pip install '.[dev]' && pytest -n auto",
    ]
    for part in " && ".join(set_up).split(" && "):
        assert f'run "{part}"\n' in script.read_text()
    assert os.access(script, os.X_OK)


@pytest.mark.parametrize(
    "command",
    [part for line in COMMANDS for part in line.split(" && ") if part.startswith("jaxtrain ")],
)
def test_a_command_has_only_verbs_flags_and_keys_that_exist(command: str) -> None:
    _, *words = shlex.split(command)
    read_words(words)


def test_the_workdir_is_the_one_that_the_first_command_prints() -> None:
    config, _ = resolve(load_recipe("mnist_mlp"), {})
    found = set(re.findall(r"runs/mnist_mlp-\w+", section("Evaluate")))
    assert found == {str(default_path("mnist_mlp", config))}


def python_files(text: str) -> dict[str, str]:
    """The programs that a section has the reader write, by name."""
    found = re.findall(r"`(\w+\.py)`[:.]\n\n```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return dict(found)


def run_all(commands: str, folder: Path) -> None:
    """Runs the lines of a block, each of which must succeed."""
    programs = Path(sys.executable).parent
    for command in commands.splitlines():
        program, *words = shlex.split(command)
        done = subprocess.run(
            [str(programs / program), *words],
            cwd=folder,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_own_arrays(tmp_path: Path) -> None:
    """The program and the commands for arrays, as they stand."""
    text = section("Your own data")
    for name, content in python_files(text).items():
        (tmp_path / name).write_text(content)
    (commands,) = re.findall(r"^```sh\n(python .*?)^```$", text, re.MULTILINE | re.DOTALL)
    run_all(commands, tmp_path)
    result = json.loads((tmp_path / "runs/flowers/result.json").read_text())
    assert result["eval"]["accuracy"] > 0.8
    assert (tmp_path / "runs/flowers/export").is_dir()


def test_own_photos(tmp_path: Path) -> None:
    """The commands for folders and lists, for a network of a few seconds."""
    text = section("Your own data")
    random = np.random.RandomState(0)
    for name, colour in (("cat", 60), ("dog", 190)):
        for number in range(30):
            image = np.clip(random.normal(colour, 30, (24, 20, 3)), 0, 255).astype(np.uint8)
            (tmp_path / "photos" / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(tmp_path / "photos" / name / f"IMG_{number:04}.jpg")
    (rows,) = re.findall(r"^```text\n(path,label.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "photos/photos.csv").write_text(
        rows.splitlines()[0]
        + "".join(
            f"\n{name}/IMG_{number:04}.jpg,{name},{'val' if number < 5 else 'train'}"
            for name in ("cat", "dog")
            for number in range(30)
        )
    )
    small = (
        "--config.model.name=resnet8 --config.model.resnet.width=0.25 --config.data.image_size=16 "
        "--config.train.epochs=3 --config.train.batch_size=16"
    )
    blocks = re.findall(r"^```sh\n(jaxtrain .*?)^```$", text, re.MULTILINE | re.DOTALL)
    commands = [
        f"{line} {small}" if "--config=" in line else line
        for block in blocks
        for line in block.splitlines()
    ]
    assert len(commands) == 5
    run_all("\n".join(commands), tmp_path)
    assert (tmp_path / "examples.png").exists()
    assert "photos/cat/IMG_" in (tmp_path / "val.csv").read_text()


def test_own_modules(tmp_path: Path) -> None:
    """The files and the commands of that section, as they stand."""
    text = section("Your own model")
    files = python_files(text)
    assert list(files) == ["make_waves.py", "my_models.py", "waves.py"]
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    run_all(commands, tmp_path)
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_the_exit_statuses_are_those_of_the_errors() -> None:
    told = {int(status) for status in re.findall(r"^\| (\d+) \|", section("Exit status"), re.M)}
    classes = [errors.JaxtrainError]
    for kind in classes:
        classes += kind.__subclasses__()
    assert told == {0, 130} | {kind.status for kind in classes}


def test_the_map_of_rooms_is_that_of_the_import_contract() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (layers,) = (
        contract["layers"]
        for contract in project["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    )
    (rows,) = re.findall(r"^```text\n(.*?)^```$", section("The code"), re.MULTILINE | re.DOTALL)
    assert [row.split("  ")[0] for row in rows.splitlines()] == layers
