"""The README's commands and examples: what is copied from it works."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

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


def test_own_modules(tmp_path: Path) -> None:
    """The files and the commands of that section, as they stand."""
    text = section("Your own model")
    files = re.findall(r"`(\w+\.py)`[:.]\n\n```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in files] == ["make_waves.py", "my_models.py", "waves.py"]
    for name, content in files:
        (tmp_path / name).write_text(content)
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    folder = Path(sys.executable).parent
    for command in commands.splitlines():
        program, *words = shlex.split(command)
        done = subprocess.run(
            [str(folder / program), *words],
            cwd=tmp_path,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_the_exit_statuses_are_those_of_the_errors() -> None:
    told = {int(status) for status in re.findall(r"^\| (\d+) \|", section("Exit status"), re.M)}
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type)]
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
