import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxtrain.config.schema import DataConfig, SyntheticConfig
from jaxtrain.data import SOURCES, silent
from jaxtrain.data.sources import open_source
from jaxtrain.errors import UsageError


def open_idx(path):
    return SOURCES["idx"](DataConfig(source="idx", path=path), silent)


def renamed(toy, rename):
    return {rename(name): array for name, array in toy.items()}


FORMS = {
    "mnist": lambda name: name,
    "gzip": lambda name: f"{name}.gz",
    "dot": lambda name: name.replace("-idx", ".idx"),
    "dot, gzip": lambda name: name.replace("-idx", ".idx") + ".gz",
    "test": lambda name: name.replace("t10k", "test"),
    "emnist": lambda name: f"emnist-letters-{name}.gz",
    "emnist test": lambda name: f"emnist-letters-{name.replace('t10k', 'test')}",
}


@pytest.mark.parametrize("form", FORMS)
def test_every_naming(idx_folder, toy, form):
    source = open_idx(idx_folder(renamed(toy, FORMS[form])))
    assert source.split_names == ("train", "test")
    assert source.class_names is None
    for split, file in (("train", "train"), ("test", "t10k"), ("t10k", "t10k")):
        opened = source.open(split)
        assert opened.name == ("train" if split == "train" else "test")
        assert np.array_equal(opened.images[..., 0], toy[f"{file}-images-idx3-ubyte"])
        assert np.array_equal(opened.labels, toy[f"{file}-labels-idx1-ubyte"])
        assert FORMS[form](f"{file}-labels-idx1-ubyte") in opened.origin


def test_a_file_that_was_unpacked_but_kept_its_name(idx_folder, toy, idx):
    folder = idx_folder(toy)
    path = f"{folder}/train-labels-idx1-ubyte"
    os.rename(path, f"{path}.gz")
    assert open_idx(folder).open("train").size == 20


def test_the_plain_file_is_taken_before_the_gzip(idx_folder, toy):
    folder = idx_folder(toy | {"train-images-idx3-ubyte.gz": b"broken"})
    assert open_idx(folder).open("train").origin.endswith("train-labels-idx1-ubyte")


def test_home_folder(idx_folder, toy, monkeypatch):
    monkeypatch.setenv("HOME", idx_folder(toy))
    assert open_idx("~").open("train").size == 20


def test_wide_labels_and_colour(idx_folder, toy):
    toy["train-images-idx4-ubyte"] = np.zeros((20, 4, 5, 3), np.uint8)
    del toy["train-images-idx3-ubyte"]
    toy["train-labels-idx1-int"] = toy.pop("train-labels-idx1-ubyte").astype(np.int32)
    split = open_idx(idx_folder(toy)).open("train")
    assert split.image_shape == (4, 5, 3)
    assert split.labels.dtype == np.int32


def test_only_the_split_that_is_asked_for_is_read(idx_folder, toy):
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        toy[name] = b"broken"
    assert open_idx(idx_folder(toy)).open("test").size == 10


def refusal(action):
    with pytest.raises(UsageError) as error:
        action()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_unknown_split(idx_folder, toy):
    folder = idx_folder(toy)
    said = refusal(lambda: open_idx(folder).open("valid"))
    assert said == f"there is no split 'valid' in {folder}; its splits: train, test"


def test_missing_file(idx_folder, toy):
    del toy["t10k-images-idx3-ubyte"]
    folder = idx_folder(toy)
    assert refusal(lambda: open_idx(folder).open("test")) == (
        f"{folder} has no test images: expected t10k-images-idx3-ubyte or "
        "t10k-images-idx3-ubyte.gz, found t10k-labels-idx1-ubyte, train-images-idx3-ubyte, "
        "train-labels-idx1-ubyte"
    )


def test_missing_file_of_a_prefixed_set(idx_folder, toy):
    files = renamed(toy, lambda name: f"emnist-letters-{name}")
    del files["emnist-letters-train-labels-idx1-ubyte"]
    said = refusal(lambda: open_idx(idx_folder(files)).open("train"))
    assert "no train labels: expected emnist-letters-train-labels-idx1-ubyte or" in said


def test_empty_and_unrelated_folders(idx_folder, tmp_path):
    assert "found nothing" in refusal(lambda: open_idx(str(tmp_path)).open("train"))
    folder = idx_folder({f"{number}.png": b"x" for number in range(12)})
    assert refusal(lambda: open_idx(folder).open("train")).endswith("and 4 more")
    assert refusal(lambda: open_idx(folder).open("x")).endswith("its splits: none")


def test_several_prefixes(idx_folder, toy):
    letters = renamed(toy, lambda name: f"emnist-letters-{name}")
    folder = idx_folder(toy | letters | renamed(toy, lambda name: f"emnist-digits-{name}.gz"))
    assert refusal(lambda: open_idx(folder)) == (
        f"{folder} holds 3 data sets ((no prefix), emnist-digits, emnist-letters); put the files "
        "of one into a folder of its own"
    )


def test_the_same_part_twice(idx_folder, toy):
    folder = idx_folder(toy | renamed(toy, lambda name: name.replace("t10k", "test")))
    said = refusal(lambda: open_idx(folder))
    assert "holds the same part 2 times (t10k-images-idx3-ubyte, test-images-idx3-ubyte)" in said


def test_counts_must_match(idx_folder, toy):
    toy["train-labels-idx1-ubyte"] = toy["train-labels-idx1-ubyte"][:-1]
    folder = idx_folder(toy)
    assert refusal(lambda: open_idx(folder).open("train")) == (
        f"{folder}/train-images-idx3-ubyte holds 20 images but train-labels-idx1-ubyte "
        "19 labels; they must be as many"
    )


def test_damage_is_named(idx_folder, toy, idx):
    packed = gzip.compress(idx(toy.pop("train-images-idx3-ubyte")))
    folder = idx_folder(toy | {"train-images-idx3-ubyte.gz": packed[:-9]})
    said = refusal(lambda: open_idx(folder).open("train"))
    assert said.startswith(f"{folder}/train-images-idx3-ubyte.gz is damaged gzip")


def test_folder_that_is_not_there(tmp_path):
    said = refusal(lambda: open_idx(str(tmp_path / "gone")))
    assert said == (
        f"data.path={tmp_path}/gone cannot be read: No such file or directory (it counts from the "
        f"current folder, {Path.cwd()})"
    )
    (tmp_path / "file").touch()
    assert "Not a directory" in refusal(lambda: open_idx(str(tmp_path / "file")))


def test_idx_needs_a_path():
    assert "data.source=idx needs data.path" in refusal(lambda: open_idx(None))


def test_unknown_source():
    said = refusal(lambda: open_source(DataConfig(source="minst"), silent))
    assert said.startswith("data.source='minst' is unknown: choose one of arrays, csv, folder, idx")
    assert said.endswith("did you mean 'mnist'?")


READ = {
    "mnist": set(),
    "idx": {"path"},
    "folder": {"path", "val_share", "channels", "background", "on_bad_file"},
    "csv": {
        *("path", "path_column", "label_column", "split_column"),
        *("val_share", "channels", "background", "on_bad_file"),
    },
    "tfds": {"path", "name", "version", "image_key", "label_key", "download"},
}
KEYS = {
    "path": ("/data", "None"),
    "name": ("cifar10", "None"),
    "version": ("3.0.2", "None"),
    "image_key": ("picture", "image"),
    "label_key": ("digit", "label"),
    "download": (True, "False"),
    "path_column": ("file", "path"),
    "label_column": ("class", "label"),
    "split_column": ("fold", "split"),
    "val_share": (0.5, "0.1"),
    "channels": (1, "None"),
    "background": ((255,), "0"),
    "on_bad_file": ("skip", "error"),
}
READ["synthetic"] = set(KEYS)  # it stands in for any data


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("source", READ)
def test_keys_of_another_source_are_refused(monkeypatch, source, key):
    monkeypatch.setitem(SOURCES, source, lambda config, progress: config)
    value, default = KEYS[key]
    config = DataConfig(source=source, **{key: value})
    if key in READ[source]:
        assert open_source(config, silent) is config
        return
    said = refusal(lambda: open_source(config, silent))
    assert said.startswith(
        f"data.{key}={value!r} is set, but data.source={source} does not read it (read by "
    )
    assert said.endswith(f"; unset it with --config.data.{key}={default}")


@pytest.mark.parametrize("source", READ)
def test_synthetic_keys_are_read_by_synthetic_alone(monkeypatch, source):
    monkeypatch.setitem(SOURCES, source, lambda config, progress: config)
    for section, key, default in (
        (SyntheticConfig(image_shape=(4, 4, 1)), "image_shape", "32,32,3"),
        (SyntheticConfig(examples=5), "examples", "1024"),
        (SyntheticConfig(eval_examples=5), "eval_examples", "256"),
    ):
        config = DataConfig(source=source, synthetic=section)
        if source == "synthetic":
            assert open_source(config, silent) is config
            continue
        said = refusal(lambda config=config: open_source(config, silent))
        assert f"data.synthetic.{key}=" in said
        assert said.endswith(
            f"does not read it (read by synthetic); unset it with "
            f"--config.data.synthetic.{key}={default}"
        )


def test_opening_data_imports_neither_jax_nor_grain():
    code = (
        "import sys; from jaxtrain import data; from jaxtrain.config.schema import DataConfig\n"
        "opened = data.open_dataset(DataConfig()); opened.train.fingerprint\n"
        "data.Sampler(60000, 128, 0).indices(1)\n"
        "print({'jax', 'grain', 'tensorflow'} & set(sys.modules))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
