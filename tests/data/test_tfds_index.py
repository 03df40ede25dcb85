import os
import subprocess
import sys
from concurrent import futures
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tfds_sets import examples, prepare

from jaxtrain.config.schema import DataConfig
from jaxtrain.data import SOURCES, silent
from jaxtrain.data.tfds.index import Index, Shard
from jaxtrain.data.tfds.records import FORMATS
from jaxtrain.errors import UsageError

BESIDE = ".jaxtrain-index-label.npz"
SHARDS = [examples(range(4)), examples(range(4, 6)), examples(range(6, 15))]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path):
    return prepare(tmp_path / "tiny/1.0.0", "tfrecord", {"train": SHARDS})


class Counted:
    """Opens splits, and counts which files are read as a whole."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.scanned: list[int] = []

    def __call__(self, split="train") -> np.ndarray:
        """The labels of a split."""
        config = DataConfig(source="tfds", path=str(self.folder))
        source = SOURCES["tfds"](config, silent)
        return source.open(split).labels


@pytest.fixture
def labels(folder, monkeypatch):
    counted = Counted(folder)
    scan = FORMATS["tfrecord"].scan

    def counting(path):
        counted.scanned.append(int(path.name[-14:-9]))
        return scan(path)

    monkeypatch.setitem(FORMATS, "tfrecord", FORMATS["tfrecord"]._replace(scan=counting))
    return counted


EXPECTED = [number % 3 for number in range(15)]


def test_files_are_read_once(labels, folder, cache):
    assert labels().tolist() == EXPECTED
    assert sorted(labels.scanned) == [0, 1, 2]
    assert (folder / BESIDE).is_file()
    assert not cache.exists()
    assert labels().tolist() == EXPECTED
    assert len(labels.scanned) == 3


def test_only_what_is_needed_is_read(labels):
    assert labels("train[4:5]+train[4:6]").tolist() == [1, 1, 2]
    assert labels.scanned == [1]
    assert labels("train[5:7]").tolist() == [2, 0]
    assert labels.scanned == [1, 2]
    assert labels().tolist() == EXPECTED
    assert labels.scanned == [1, 2, 0]


def test_a_changed_file_is_read_again(labels, folder):
    labels()
    file = folder / "tiny-train.tfrecord-00001-of-00003"
    status = file.stat()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    labels()
    assert sorted(labels.scanned) == [0, 1, 1, 2]
    content = file.read_bytes()
    file.write_bytes(content + content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(UsageError, match=r"holds 4 examples, but dataset_info\.json .* says 2"):
        labels()


def test_what_was_read_is_kept_when_a_file_is_damaged(labels, folder):
    file = folder / "tiny-train.tfrecord-00002-of-00003"
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(UsageError, match="is damaged at record 8"):
        labels()
    file.write_bytes(content)
    assert labels().tolist() == EXPECTED
    assert sorted(labels.scanned) == [0, 1, 2, 2]


def test_each_label_has_an_index(tmp_path):
    kinds = tfds.features.FeaturesDict({"a": {"b": np.int64}, "c": np.int64})
    shard = [{"a": {"b": number}, "c": -number} for number in range(3)]
    folder = prepare(tmp_path / "nested/1.0.0", "tfrecord", {"train": [shard]}, kinds)
    shard = Shard(folder / "nested-train.tfrecord-00000-of-00001", 3)
    for key, expected in (("a/b", [0, 1, 2]), ("c", [0, -1, -2]), ("a/b", [0, 1, 2])):
        index = Index(folder, key, FORMATS["tfrecord"].scan).read([shard])
        assert index[shard.path.name].labels.tolist() == expected
    names = {path.name for path in folder.glob(".*")}
    assert names == {".jaxtrain-index-a%2Fb.npz", ".jaxtrain-index-c.npz"}
    with pytest.raises(UsageError, match="0 integers as 'd', not 1"):
        Index(folder, "d", FORMATS["tfrecord"].scan).read([shard])


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(place=st.integers(0, 2**16), value=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_index_is_made_again(labels, folder, place, value, cut):
    labels()
    good = (folder / BESIDE).read_bytes()
    damaged = bytearray(good)
    place %= len(good)
    if cut:
        del damaged[place:]
    else:
        damaged[place] = value
    (folder / BESIDE).write_bytes(damaged)
    assert labels().tolist() == EXPECTED


def test_the_cache_where_data_cannot_be_written(open_place, read_only, monkeypatch):
    folder = prepare(open_place / "data/tiny/1.0.0", "tfrecord", {"train": SHARDS})
    cache = open_place / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    labels = Counted(folder)
    with read_only(open_place / "data"):
        assert labels().tolist() == EXPECTED
        assert labels().tolist() == EXPECTED
    assert not (folder / BESIDE).exists()
    (stored,) = cache.rglob("*.npz")
    assert stored.parts[len(cache.parts) :][:2] == ("jaxtrain", "tfds")
    stored.write_bytes(b"damaged")
    with read_only(open_place):  # nowhere at all
        assert labels().tolist() == EXPECTED
    assert stored.read_bytes() == b"damaged"


def test_home_is_where_the_cache_is_without_xdg(folder, monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("jaxtrain.data.tfds.index.atomic_write_bytes", _refuse_beside)
    assert Counted(folder)().tolist() == EXPECTED
    assert list((tmp_path / ".cache/jaxtrain/tfds").glob("*/jaxtrain-index-label.npz"))


def _refuse_beside(path, content):
    if path.name == BESIDE:
        raise UsageError("read-only")
    path.write_bytes(content)


SCRIPT = """
import sys
from jaxtrain.config.schema import DataConfig
from jaxtrain.data import SOURCES, silent
source = SOURCES["tfds"](DataConfig(source="tfds", path=sys.argv[1]), silent)
sys.stdin.readline()
print(source.open(sys.argv[2]).labels.tolist())
"""


def test_two_processes_at_once(folder):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, folder, split],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for split in ("train[:1shard]", "train")
    ]
    with futures.ThreadPoolExecutor(2) as pool:
        said = list(pool.map(lambda process: process.communicate("\n")[0], running))
    assert said == [f"{EXPECTED[:4]}\n", f"{EXPECTED}\n"]
    assert Counted(folder)().tolist() == EXPECTED
