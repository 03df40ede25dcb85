"""What a person installs: the wheel, the source archive, the import contracts, the entry points."""

import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

import jaxtrain

ROOT = Path(__file__).resolve().parents[1]
MNIST = [
    f"jaxtrain/data/mnist/{name}-ubyte.gz"
    for name in ("t10k-images-idx3", "t10k-labels-idx1", "train-images-idx3", "train-labels-idx1")
]
Digests = dict[str, str]


def run(*words: str | Path, cwd: Path, **environment: str) -> str:
    """Stdout of a command that must succeed."""
    done = subprocess.run(
        list(map(str, words)),
        cwd=cwd,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source: Path, target: str, into: Path) -> Path:
    """The archive that `target` (wheel or sdist) makes of a source tree."""
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", into, cwd=source)
    (archive,) = into.iterdir()
    return archive


def wheel_content(wheel: Path) -> Digests:
    with zipfile.ZipFile(wheel) as archive:
        return {n: hashlib.sha256(archive.read(n)).hexdigest() for n in archive.namelist()}


def package_files(folder: Path) -> Digests:
    """Digest of every file of a `jaxtrain` folder but compiled ones, by its name in the wheel."""
    return {
        f"jaxtrain/{path.relative_to(folder).as_posix()}": hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def checkout_files() -> Digests:
    """What the package has to hold: the checkout's, with configs/ inside."""
    configs = {
        f"jaxtrain/configs/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (ROOT / "configs").glob("*.py")
    }
    return package_files(ROOT / "jaxtrain") | configs


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    content: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return content


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


class TestWheel:
    def test_holds_the_package_the_data_and_the_configs(self, wheel: Path) -> None:
        content = wheel_content(wheel)
        package = {name: digest for name, digest in content.items() if ".dist-info/" not in name}
        assert package == checkout_files()
        assert {*MNIST, "jaxtrain/py.typed", "jaxtrain/configs/mnist_mlp.py"} <= set(package)

    def test_says_what_it_is(self, wheel: Path, project: dict[str, Any]) -> None:
        folder = f"jaxtrain-{jaxtrain.__version__}.dist-info"
        with zipfile.ZipFile(wheel) as archive:
            metadata = archive.read(f"{folder}/METADATA").decode()
            entries = archive.read(f"{folder}/entry_points.txt").decode()
            license_text = archive.read(f"{folder}/licenses/LICENSE").decode()
        assert entries.split() == ["[console_scripts]", "jaxtrain", "=", "jaxtrain.cli:entry"]
        assert f"\nVersion: {jaxtrain.__version__}\n" in metadata
        assert "\nLicense-Expression: Apache-2.0\n" in metadata
        assert "Apache License" in license_text.splitlines()[1]
        for extra in project["project"]["optional-dependencies"]:
            assert f"\nProvides-Extra: {extra}\n" in metadata

    def test_works_from_an_empty_folder(self, wheel: Path, tmp_path: Path) -> None:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(tmp_path / "site")
        empty = tmp_path / "empty"
        empty.mkdir()
        words = ("-m", "jaxtrain", "check", "--config=mnist_mlp", "--json")
        out = run(sys.executable, *words, cwd=empty, PYTHONPATH=str(tmp_path / "site"))
        report = json.loads(out)
        assert report["ok"]
        assert report["sources"]["train.epochs"] == "configs/mnist_mlp.py"
        assert [split["examples"] for split in report["data"].values()] == [60_000, 10_000]
        assert list(empty.iterdir()) == []


def test_the_source_archive_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    archive = build(ROOT, "sdist", tmp_path / "sdist")
    run("tar", "-xzf", archive, cwd=tmp_path)
    source = tmp_path / archive.name.removesuffix(".tar.gz")
    again = build(source, "wheel", tmp_path / "wheel")
    assert wheel_content(again) == wheel_content(wheel)
    for name in ("tests/test_packaging.py", "CHANGELOG.md", "LICENSE", "README.md"):
        assert (source / name).read_bytes() == (ROOT / name).read_bytes()


def test_the_tests_import_what_is_installed_and_it_is_this_checkout() -> None:
    """Else a passing test says nothing: of an old install, say, after a change."""
    distribution = importlib.metadata.distribution("jaxtrain")
    folder = Path(jaxtrain.__file__).parent
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        assert folder == ROOT / "jaxtrain"
        return
    assert Path(str(distribution.locate_file("jaxtrain"))).resolve() == folder.resolve()
    assert package_files(folder) == checkout_files(), "install again: pip install '.[dev]'"


def test_the_command_is_installed() -> None:
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="jaxtrain")
    command = Path(sys.executable).with_name("jaxtrain")
    assert entry.value == "jaxtrain.cli:entry"
    assert run(command, "--version", cwd=ROOT) == f"jaxtrain {jaxtrain.__version__}\n"


def test_import_contracts() -> None:
    run(Path(sys.executable).with_name("lint-imports"), "--no-cache", cwd=ROOT)
