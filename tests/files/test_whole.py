import json
import math
import os
from concurrent import futures

import numpy as np
import pytest

from jaxtrain.errors import CheckpointError, UsageError
from jaxtrain.files import atomic_write_json, atomic_write_text


def test_json_keeps_the_order_and_has_no_nan(tmp_path):
    value = {"b": math.nan, "a": [math.inf, 1.5, (True, None)], "n": {"x": -math.inf}, "s": "é"}
    atomic_write_json(tmp_path / "x.json", value)
    text = (tmp_path / "x.json").read_text()
    read = json.loads(text, parse_constant=pytest.fail)
    assert read == {"b": None, "a": [None, 1.5, [True, None]], "n": {"x": None}, "s": "é"}
    assert list(read) == ["b", "a", "n", "s"]
    assert text.endswith("}\n")


def test_json_takes_numpy_scalars(tmp_path):
    value = {"f": np.float32(0.5), "i": np.int64(3), "nan": np.float32(np.nan)}
    atomic_write_json(tmp_path / "x.json", value)
    assert json.loads((tmp_path / "x.json").read_text()) == {"f": 0.5, "i": 3, "nan": None}


def test_json_refuses_what_it_cannot_hold_and_keeps_the_old_file(tmp_path):
    atomic_write_json(tmp_path / "x.json", {"a": 1})
    with pytest.raises(TypeError):
        atomic_write_json(tmp_path / "x.json", {"a": object()})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["x.json"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call):
    path = tmp_path / "x.json"
    atomic_write_text(path, "old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(CheckpointError, match=r"x\.json: No space left on device; make room"):
        atomic_write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["x.json"]


def test_threads_that_write_one_file_leave_one_of_their_contents(tmp_path):
    path = tmp_path / "x.json"

    def write(number):
        atomic_write_text(path, str(number) * 1000)
        return path.read_text()

    with futures.ThreadPoolExecutor(8) as pool:
        found = set(pool.map(write, (k % 10 for k in range(200))))
    assert found <= {str(number) * 1000 for number in range(10)}
    assert os.listdir(tmp_path) == ["x.json"]


def test_a_read_only_folder_is_a_usage_error(open_place, read_only):
    with read_only(open_place), pytest.raises(UsageError, match="Permission denied"):
        atomic_write_text(open_place / "x.json", "new")
    assert os.listdir(open_place) == []


def test_others_may_read_the_file(tmp_path):
    umask = os.umask(0o022)
    try:
        atomic_write_text(tmp_path / "x", "text")
    finally:
        os.umask(umask)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o644
