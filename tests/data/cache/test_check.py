"""What cannot be kept on disk: `check` and `train` say the same, before anything is written."""

import os
import shutil
from collections import namedtuple

import numpy as np
import pytest
from PIL import Image

from jaxtrain.cli import main

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def words(tmp_path, monkeypatch):
    """A run on a folder of 20 images of 8 x 8."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    for number in range(20):
        folder = tmp_path / "data" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image = np.full((8, 8, 3), number, np.uint8)
        Image.fromarray(image).save(folder / f"{number}.png")
    return [
        "--config=mnist_mlp",
        "--config.data.source=folder",
        f"--config.data.path={tmp_path / 'data'}",
        "--config.data.image_size=8",
        "--config.data.cache=disk",
        "--config.train.batch_size=8",
        "--config.schedule.warmup_steps=0",
    ]


def verdict(capsys, *words):
    """What `check` says at the end, and its status."""
    status = main(["check", *words])
    line = capsys.readouterr().out.splitlines()[-1]
    return line.removeprefix("verdict").strip(), status


@pytest.mark.parametrize("what", ["a file", "unwritable", "no room", "no room for both"])
def test_check_says_what_train_says(words, what, tmp_path, monkeypatch, capsys):
    place = tmp_path / "cache"
    said, status = verdict(capsys, *words, f"--config.data.cache_path={place}")
    assert status == 0, said
    assert not place.exists()
    if what == "a file":
        place.write_text("")
        expected = f"{place} cannot be used: Not a directory; set data.cache_path to a folder "
    elif what == "unwritable":
        access = os.access  # root may write everywhere
        expected = f"{tmp_path} cannot be used: Permission denied; set data.cache_path to a folder "
        monkeypatch.setattr(
            os, "access", lambda at, *a, **b: at != tmp_path and access(at, *a, **b)
        )
    else:
        free = 2**26 + (20 * 192 - 1 if what == "no room for both" else 100)
        expected = "decoded images of split {} need about ".format(
            "val" if what == "no room for both" else "train"
        )
        monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, free))
    words += [f"--config.data.cache_path={place}"]
    before = sorted(tmp_path.rglob("*"))
    said, status = verdict(capsys, *words)
    assert (expected in said, status) == (True, 2), said
    assert main(["train", *words, f"--workdir={tmp_path / 'run'}"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(said.removeprefix("would fail: "))
    assert sorted(tmp_path.rglob("*")) == before
