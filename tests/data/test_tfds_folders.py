import json

import pytest
import tensorflow_datasets as tfds
from tfds_sets import examples, prepare

from jaxtrain.config.schema import DataConfig
from jaxtrain.data import SOURCES, silent
from jaxtrain.errors import UsageError

SPLITS = {"train": [examples(range(3))]}


def opened(path=None, name=None, **keys):
    """The folder that was opened."""
    config = DataConfig(source="tfds", path=None if path is None else str(path), name=name, **keys)
    return SOURCES["tfds"](config, silent).open("train").origin


def refusal(*words, **keys):
    with pytest.raises(UsageError) as error:
        opened(*words, **keys)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def data_dir(tmp_path):
    """`plain` in three versions, `alone` with one configuration, `several` with two."""
    for place, config in {
        "plain/1.9.0": None,
        "plain/1.10.0": None,
        "plain/0.1.0": None,
        "alone/big/2.0.0": "big",
        "several/small/1.0.0": "small",
        "several/large/1.0.0": "large",
    }.items():
        name, version = place.split("/")[0], place.split("/")[-1]
        info = {"name": name, "version": version}
        if config is not None:
            info["configName"] = config
        prepare(tmp_path / place, "tfrecord", SPLITS, **info)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "version", "folder"),
    [
        ("plain", None, "plain/1.10.0"),
        ("plain", "1.9.0", "plain/1.9.0"),
        ("plain", "0.*.*", "plain/0.1.0"),
        ("alone", None, "alone/big/2.0.0"),
        ("alone/big", "2.0.0", "alone/big/2.0.0"),
        ("several/small", None, "several/small/1.0.0"),
    ],
)
def test_names_and_versions(data_dir, name, version, folder):
    assert opened(data_dir, name, version=version) == str(data_dir / folder)


def test_the_default_configuration(data_dir):
    assert "(there: large/1.0.0, small/1.0.0)" in refusal(data_dir, "several")
    metadata = data_dir / "several/.config/metadata.json"
    metadata.parent.mkdir()
    metadata.write_text(json.dumps({"default_config_name": "small"}))
    assert opened(data_dir, "several") == str(data_dir / "several/small/1.0.0")


def test_the_folder_of_a_version(data_dir):
    folder = data_dir / "several/small/1.0.0"
    for name in (None, "several", "several/small"):
        assert opened(folder, name, version="1.*.*") == str(folder)
    assert refusal(folder, "plain") == (
        f"data.path={folder} holds several/small/1.0.0, not data.name=plain; set data.name=None, "
        "or give the folder of that data set"
    )
    assert "not data.name=several/large" in refusal(folder, "several/large")
    assert refusal(folder, version="2.0.0") == (
        f"data.path={folder} holds several/small/1.0.0, not data.version=2.0.0; set "
        "data.version=None, or give the folder of that version"
    )


def test_the_default_place(data_dir, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(data_dir))
    assert opened(name="plain").startswith(f"{data_dir}/plain/")
    monkeypatch.delenv("TFDS_DATA_DIR")
    monkeypatch.setenv("HOME", str(data_dir))
    assert f"{data_dir}/tensorflow_datasets (there is no such folder)" in refusal(name="my_own")
    (data_dir / "tensorflow_datasets").symlink_to(data_dir)
    assert opened(name="plain").startswith(f"{data_dir}/tensorflow_datasets/plain/")
    assert opened("~", "plain") == str(data_dir / "plain/1.10.0")


def test_no_name(data_dir):
    said = refusal(data_dir)
    assert said.startswith("data.source=tfds needs data.name, as in data.name=cifar10, or as")
    assert said.endswith(f"data.path is {data_dir} (there: alone, plain, several)")
    assert refusal(data_dir / "plain").endswith("/plain (there: 0.1.0, 1.9.0, 1.10.0)")


@pytest.mark.parametrize("name", ["mnist:3.0.1", "a/b/c", "", "../x", "kaggle:x", "a b"])
def test_what_cannot_be_a_name(tmp_path, name):
    assert f"data.name={name!r} is not NAME or NAME/CONFIG" in refusal(tmp_path, name)


@pytest.mark.parametrize("version", ["3", "3.0", "latest", "1.2.3.4"])
def test_what_cannot_be_a_version(tmp_path, version):
    prepare(tmp_path / "tiny/1.0.0", "tfrecord", SPLITS)
    for path in (tmp_path, tmp_path / "tiny/1.0.0"):
        assert f"data.version={version!r} is no version" in refusal(path, "tiny", version=version)


def test_buckets():
    assert "buckets are not supported yet" in refusal("gs://bucket/data", "mnist")


def test_a_known_data_set_that_is_not_there(data_dir):
    gone = data_dir / "gone"
    assert refusal(gone, "mnist") == (
        f"mnist is not prepared in {gone}/mnist (there is no such folder); set data.path to the "
        "folder that holds mnist/, or data.name and data.version to what is there, or add "
        "--config.data.download=true to download and prepare it"
    )


def test_a_version_that_is_not_there(data_dir):
    said = refusal(data_dir, "plain", version="3.*.*")
    assert said.startswith(
        f"plain 3.*.* is not prepared in {data_dir}/plain (there: 0.1.0, 1.9.0, 1.10.0); set"
    )
    assert "download" not in said
    assert "alone/small is not prepared" in refusal(data_dir, "alone/small")


def test_an_unknown_name(data_dir):
    assert refusal(data_dir, "plane") == (
        f"data.name=plane is neither in {data_dir} (there: alone, plain, several) nor known to "
        f"TensorFlow Datasets {tfds.__version__}; did you mean plain?"
    )
    assert "cifar10" in refusal(data_dir, "cifar11").split("did you mean ")[1]
    assert "did you mean" not in refusal(data_dir, "qqqqqqqq")


def test_a_folder_that_cannot_be_read(open_place, read_only):
    prepare(open_place / "tiny/1.0.0", "tfrecord", SPLITS)
    (open_place / "tiny").chmod(0)
    with read_only(open_place / "tiny/1.0.0"):
        assert "Permission denied" in refusal(open_place / "tiny/1.0.0")
