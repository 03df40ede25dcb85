import os
import subprocess
import sys
from concurrent import futures
from typing import ClassVar

import pytest
import tensorflow_datasets as tfds
from tfds_sets import FEATURES, examples, pixels

from jaxtrain.config.schema import DataConfig
from jaxtrain.data import SOURCES, silent
from jaxtrain.errors import UsageError


class TinyTrial(tfds.core.GeneratorBasedBuilder):
    """A data set that needs neither the network nor TensorFlow."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS: ClassVar = [
        tfds.core.BuilderConfig(name=name) for name in ("whole", "broken", "tensorflow")
    ]

    def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=FEATURES)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        yield from enumerate(examples(range(5)))
        if self.builder_config.name == "broken":
            raise ValueError("first " + 1000 * "two\nlines " + "last")
        if self.builder_config.name == "tensorflow":
            raise ModuleNotFoundError("while ...:\nNo module named 'tensorflow'")


def open_trial(path, name="tiny_trial", **keys):
    config = DataConfig(source="tfds", path=str(path), name=name, download=True, **keys)
    return SOURCES["tfds"](config, silent)


def refusal(*words, **keys):
    with pytest.raises(UsageError) as error:
        open_trial(*words, **keys)
    assert "\n" not in str(error.value)
    return str(error.value)


def numbers(source):
    split = source.open("train")
    known = {pixels(number).tobytes(): number for number in range(5)}
    found = [known[split.decode(index).tobytes()] for index in range(split.size)]
    assert split.labels.tolist() == [number % 3 for number in found]
    return sorted(found)


def test_what_is_absent_is_prepared(tmp_path, capsys):
    data_dir = tmp_path / "new" / "data_dir"
    source = open_trial(data_dir)
    assert source.class_names == ("cat", "dog", "owl")
    assert numbers(source) == list(range(5))
    folder = data_dir / "tiny_trial/whole/1.0.0"
    assert source.open("train").origin == str(folder)
    assert list(folder.glob("*.array_record-00000-of-00001"))
    assert capsys.readouterr().out == ""


def test_what_is_there_is_not_prepared_again(tmp_path, monkeypatch):
    open_trial(tmp_path)
    monkeypatch.delattr(TinyTrial, "_generate_examples")
    assert numbers(open_trial(tmp_path, "tiny_trial/whole", version="1.*.*")) == list(range(5))


TWO = """
import sys, time
import tensorflow_datasets as tfds
from tfds_sets import FEATURES, examples
from jaxtrain.config.schema import DataConfig
from jaxtrain.data import SOURCES, silent

class TinySlow(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=FEATURES)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        print("preparing")
        time.sleep(0.5)
        yield from enumerate(examples(range(5)))

sys.stdin.readline()
config = DataConfig(source="tfds", path=sys.argv[1], name="tiny_slow", download=True)
labels = SOURCES["tfds"](config, silent).open("train").labels
print(sorted(labels.tolist()), "tensorflow" in sys.modules)
"""


def test_one_process_prepares_and_the_other_waits(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", TWO, tmp_path],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    with futures.ThreadPoolExecutor(2) as pool:
        said = list(pool.map(lambda process: process.communicate("\n"), running))
    assert [out for out, _ in said] == ["[0, 0, 1, 1, 2] False\n"] * 2
    assert sum("preparing" in err for _, err in said) == 1


def test_what_cannot_be_prepared(tmp_path):
    said = refusal(tmp_path, "tiny_trial/broken")
    assert said.startswith(f"tiny_trial/broken cannot be downloaded and prepared in {tmp_path}: ")
    assert "first two lines" in said
    assert " lines last; mend that" in said
    assert len(said) < 1000
    said = refusal(tmp_path, "tiny_trial/tensorflow")
    assert said.startswith(
        "preparing tiny_trial/tensorflow needs a package: No module named 'tensorflow'; install it "
    )
    assert not list(tmp_path.rglob("*.array_record*"))
    assert "only: 1.0.0" in refusal(tmp_path, version="2.0.0")
    assert "BuilderConfig other not found" in refusal(tmp_path, "tiny_trial/other")
    assert "did you mean tiny_trial?" in refusal(tmp_path / "typo", "tiny_trail")
    assert not (tmp_path / "typo").exists()


def test_a_place_that_cannot_be_written(open_place, read_only):
    with read_only(open_place):
        assert refusal(open_place) == (
            f"cannot write into {open_place}: Permission denied; set data.path to a folder that is "
            "writable, to prepare tiny_trial there"
        )
