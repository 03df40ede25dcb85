import os
import platform
import re
from pathlib import Path

import pytest

from jaxtrain.data.cache import chunk
from jaxtrain.files import beside, beside_pattern, unique_beside

NO_PROCESS = 2**22 + 1  # above the most that Linux gives


def named(path: Path, node: str, pid: int) -> Path:
    """A file as one that `unique_beside` names."""
    other = path.with_name(f".{path.name}.{node}.{pid}.0123abcd.tmp")
    other.write_text("")
    return other


@pytest.mark.parametrize("name", ["model", "config.json", "a+b (1)", ".hidden", "a.b.1.tmp"])
@pytest.mark.parametrize("node", ["laptop", "node-1.cluster.example", "1.2", ""])
def test_the_pattern_knows_what_has_been_named(tmp_path, monkeypatch, name, node):
    monkeypatch.setattr(platform, "node", lambda: node)
    path = tmp_path / name
    first, second = unique_beside(path), unique_beside(path)
    assert first != second
    assert first.parent == tmp_path
    for found in (first, second):
        match = beside_pattern(re.escape(name)).fullmatch(found.name)
        assert match is not None
        assert (match["node"], int(match["pid"])) == (node, os.getpid())
        assert beside_pattern(re.escape(name), "old").fullmatch(found.name) is None
        assert beside_pattern("other").fullmatch(found.name) is None


def test_what_is_being_written_of_kept_images_is_known(tmp_path):
    path = tmp_path / f"{'0a' * 16}{chunk.SUFFIX}"
    match = chunk.TEMPORARY.fullmatch(unique_beside(path).name)
    assert match is not None
    assert match["node"] == platform.node()


def test_what_killed_processes_of_this_machine_left_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "node", lambda: "here.example")
    path = tmp_path / "model"
    left = named(path, "here.example", NO_PROCESS)
    others = [
        named(path, "here.example", os.getpid()),
        named(path, "there.example", NO_PROCESS),
        named(path, "other.here.example", NO_PROCESS),
        named(tmp_path / "models", "here.example", NO_PROCESS),
        named(tmp_path / "model.old", "here.example", NO_PROCESS),
        tmp_path / ".model.here.example.tmp",
    ]
    others[-1].write_text("")
    assert not beside(path).exists()
    assert not left.exists()
    assert all(other.exists() for other in others)
