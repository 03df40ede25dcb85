import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds
import tfds_sets
from tfds_sets import FEATURES, examples, pixels, png, prepare

from jaxtrain import data
from jaxtrain.config.schema import DataConfig
from jaxtrain.data import SOURCES, silent
from jaxtrain.errors import DataError, UsageError

FORMATS = ("tfrecord", "array_record")
# Three files, so that parts of splits begin and end within them.
TRAIN = [examples(range(7)), examples(range(7, 12)), examples(range(12, 20))]
TEST = [examples(range(100, 110))]


def open_tfds(path, name="tiny", **keys):
    return SOURCES["tfds"](DataConfig(source="tfds", path=str(path), name=name, **keys), silent)


def refusal(action):
    with pytest.raises(UsageError) as error:
        action()
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture(scope="module", params=FORMATS)
def data_dir(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    prepare(path / "tiny/1.0.0", request.param, {"train": TRAIN, "test": TEST})
    return path


def numbers(split):
    """The numbers of a split's examples, told by their images, whose labels must be theirs."""
    known = {pixels(number).tobytes(): number for number in (*range(20), *range(100, 110))}
    images = [split.decode(index) for index in range(split.size)]
    assert all(image.dtype == np.uint8 and image.shape == (4, 5, 3) for image in images)
    found = [known[image.tobytes()] for image in images]
    assert split.labels.dtype == np.int32
    assert split.labels.tolist() == [number % 3 for number in found]
    return found


def test_a_data_set(data_dir):
    source = open_tfds(data_dir)
    assert source.class_names == ("cat", "dog", "owl")
    assert source.split_names == ("train", "test")
    split = source.open("train")
    assert (split.name, split.size, split.channels) == ("train", 20, 3)
    assert split.image_shape == (4, 5, 3)
    assert split.origin == str(data_dir / "tiny/1.0.0")
    assert numbers(split) == list(range(20))
    assert numbers(source.open("test")) == list(range(100, 110))


@pytest.mark.parametrize(
    ("expression", "expected"),
    {
        "train[:80%]": range(16),
        "train[80%:]": range(16, 20),
        "train[:33%]": range(7),  # 6.6, rounded
        "train[6:13]": range(6, 13),
        "train[-3:]": range(17, 20),
        "train[1shard]": range(7, 12),
        "train+test": [*range(20), *range(100, 110)],
        "test[8:]+train[:50%]+test[8:]": [108, 109, *range(10), 108, 109],
        "all": [*range(20), *range(100, 110)],
    }.items(),
)
def test_split_expressions(data_dir, expression, expected):
    split = open_tfds(data_dir).open(expression)
    assert (split.name, split.size) == (expression, len(expected))
    assert numbers(split) == list(expected)


@pytest.mark.parametrize(
    ("expression", "complaint"),
    {
        "valid": "Unknown split 'valid'",
        "train[:80": "Unrecognized split format: 'train[:80'",
        "train[:21]": "incompatible with 20 examples",
        "../train": "Unrecognized split format",
    }.items(),
)
def test_unknown_splits(data_dir, expression, complaint):
    said = refusal(lambda: open_tfds(data_dir).open(expression))
    assert said.startswith(f"there is no split {expression!r} in {data_dir}/tiny/1.0.0 (")
    assert complaint in said
    assert "its splits: train (20 examples), test (10 examples), and parts of them" in said


@pytest.mark.parametrize(
    "expression", ["train[:0]", "train[:1%]", "train[9:3]", "test[5:3]", "train[5:3]+train[:6]"]
)
def test_empty_splits(data_dir, expression):
    said = refusal(lambda: open_tfds(data_dir).open(expression))
    assert f"split {expression!r} has no examples" in said


def test_a_run_opens_parts_of_one_split_at_once(data_dir):
    config = DataConfig(
        source="tfds",
        path=str(data_dir),
        name="tiny",
        train_split="train[:80%]",
        eval_split="train[80%:]",
    )
    dataset = data.open_dataset(config)
    assert dataset.class_names == ("cat", "dog", "owl")
    assert np.array_equal(dataset.train.images, [pixels(number) for number in range(16)])
    assert np.array_equal(dataset.eval.images, [pixels(number) for number in range(16, 20)])


def test_fingerprint_is_of_the_examples_alone(tmp_path):
    def fingerprint(place, file_format, shards, split="train", **keys):
        folder = prepare(tmp_path / place / "tiny/1.0.0", file_format, {"train": shards})
        return open_tfds(folder, name=None, **keys).open(split).fingerprint

    first = fingerprint("1", "tfrecord", TRAIN)
    assert len(bytes.fromhex(first)) == 4
    everything = [example for shard in TRAIN for example in shard]
    assert fingerprint("2", "array_record", [everything]) == first
    assert fingerprint("3", "tfrecord", TRAIN, split="train[:5]+train[5:]") == first
    other_image = [dict(each) for each in everything]
    other_image[3]["image"] = png(pixels(3) ^ 1)
    other_label = [dict(each) for each in everything]
    other_label[3]["label"] = 1
    others = [
        fingerprint("4", "tfrecord", [other_image]),
        fingerprint("5", "tfrecord", [other_label]),
        fingerprint("6", "tfrecord", TRAIN[::-1]),
        fingerprint("7", "tfrecord", TRAIN, split="train[1:]"),
    ]
    assert len({first, *others}) == 5


NO_NETWORK = """
import socket, sys
def refuse(*words): raise AssertionError(f"network: {words}")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
socket.socket.sendto = socket.create_connection = refuse
from jaxtrain import data
from jaxtrain.config.schema import DataConfig
config = DataConfig(source="tfds", path=sys.argv[1], name="tiny", eval_split="train[:1]+test")
opened = data.open_dataset(config)
assert opened.train.images.shape == (20, 4, 5, 3) and opened.eval.images.shape == (11, 4, 5, 3)
assert opened.train.fingerprint
print({"tensorflow", "jax", "flax", "torch"} & set(sys.modules))
"""


def test_neither_tensorflow_nor_the_network(data_dir):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", NO_NETWORK, data_dir],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout.strip(), done.stderr) == ("set()", "")


def test_importing_data_imports_no_tfds():
    code = "import sys, jaxtrain.data; print('tensorflow_datasets' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert said.strip() == "False"


def features(**keys):
    return tfds.features.FeaturesDict({**FEATURES, **keys})


def test_sizes_that_vary_and_other_keys(tmp_path):
    kinds = tfds.features.FeaturesDict(
        {"photo": tfds.features.Image(shape=(None, None, 1)), "kind": np.int64}
    )
    images = [pixels(number, (3 + number, 9, 1)) for number in range(4)]
    shard = [{"photo": png(image), "kind": number - 1} for number, image in enumerate(images)]
    folder = prepare(tmp_path / "tiny/1.0.0", "array_record", {"train": [shard]}, kinds)
    source = open_tfds(folder, name=None, image_key="photo", label_key="kind")
    assert source.class_names is None
    split = source.open("train")
    assert (split.image_shape, split.channels) == (None, 1)
    assert split.labels.tolist() == [-1, 0, 1, 2]
    for index, image in enumerate(images):
        assert np.array_equal(split.decode(index), image)


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"image_key": "img"}, "data.image_key='img' is no feature of tiny/1.0.0; its features: "),
        ({"label_key": "y"}, "data.label_key='y' is no feature of tiny/1.0.0; its features: "),
        ({"image_key": "label"}, "data.image_key='label' is ClassLabel"),
        ({"image_key": "depth"}, "features of that kind: image"),
        ({"image_key": "masks"}, "an image of uint8 with 1, 3 or 4 channels is needed"),
        ({"label_key": "image"}, "data.label_key='image' is Image"),
        ({"label_key": "text"}, "features of that kind: count, label"),
        ({"label_key": "box"}, "a class label or an integer is needed"),
        ({"label_key": "packed"}, "a class label or an integer is needed"),
    ],
)
def test_features_that_do_not_fit(tmp_path, keys, complaint):
    kinds = features(
        depth=tfds.features.Image(shape=(None, None, 1), dtype=np.float32),
        masks=tfds.features.Image(shape=(None, None, 2)),
        text=tfds.features.Text(),
        box=tfds.features.Tensor(shape=(4,), dtype=np.int64),
        packed=tfds.features.Tensor(shape=(), dtype=np.int64, encoding="zlib"),
        count=np.int32,
        nested={"label": np.int64},
        several=tfds.features.Sequence(np.int64),
    )
    folder = prepare(tmp_path / "tiny/1.0.0", "tfrecord", {"train": [[]]}, kinds)
    assert complaint in refusal(lambda: open_tfds(folder, name=None, **keys))


def test_labels_that_are_no_class_numbers(tmp_path):
    split = {"train": [[{**examples([1])[0], "id": 2**31}]]}
    folder = prepare(tmp_path / "tiny/1.0.0", "tfrecord", split, features(id=np.int64))
    said = refusal(lambda: open_tfds(folder, name=None, label_key="id").open("train"))
    assert "tiny-train.tfrecord-00000-of-00001: 'id' of record 0 is 2147483648, which is no" in said


def test_records_without_the_label(tmp_path):
    folder = prepare(tmp_path / "tiny/1.0.0", "tfrecord", {"train": TRAIN})
    features(other=np.int64).save_config(folder)
    said = refusal(lambda: open_tfds(folder, name=None, label_key="other").open("train"))
    assert (
        "tiny-train.tfrecord-00000-of-00003 is damaged at record 0: 0 integers as 'other'" in said
    )


def test_records_that_are_no_examples(tmp_path):
    folder = prepare(tmp_path / "tiny/1.0.0", "tfrecord", {"train": TRAIN})
    file = folder / "tiny-train.tfrecord-00001-of-00003"
    tfds_sets.write_records(file, "tfrecord", [b"\xff"] * 5)
    said = refusal(lambda: open_tfds(folder, name=None).open("train"))
    assert f"{file} is damaged at record 0: it is no tf.train.Example" in said


@pytest.mark.parametrize("file_format", FORMATS)
def test_files_that_are_missing_or_short(tmp_path, file_format):
    folder = prepare(tmp_path / "tiny/1.0.0", file_format, {"train": TRAIN, "test": TEST})
    source = open_tfds(folder, name=None)
    file = folder / f"tiny-train.{file_format}-00001-of-00003"
    tfds_sets.write_records(file, file_format, [])
    assert f"{file} holds 0 examples, but dataset_info.json beside it says 5" in refusal(
        lambda: source.open("train")
    )
    file.unlink()
    assert f"{file} cannot be read: No such file" in refusal(lambda: source.open("train"))
    assert numbers(source.open("test+train[:1shard]")) == [*range(100, 110), *range(7)]


def failure(split, index):
    with pytest.raises(DataError) as error:
        split.decode(index)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("file_format", FORMATS)
def test_files_that_change_while_they_are_used(tmp_path, file_format):
    folder = prepare(tmp_path / "tiny/1.0.0", file_format, {"train": TRAIN})
    split = open_tfds(folder, name=None).open("train")
    file = folder / f"tiny-train.{file_format}-00001-of-00003"
    content = file.read_bytes()
    file.write_bytes(content.replace(png(pixels(9)), png(pixels(9))[::-1]))
    assert numbers(open_tfds(folder, name=None).open("train[:7]")) == list(range(7))
    if file_format == "tfrecord":
        said = failure(split, 9)
        assert said.startswith(f"record 2 of {file} cannot be used: it is not what it was")
    shutil.rmtree(folder)
    assert f"record 0 of {folder}/tiny-train" in failure(split, 12)


def test_images_that_cannot_be_used(tmp_path):
    shard = [
        {"image": png(pixels(1)), "label": 0},
        {"image": b"no image", "label": 0},
        {"image": png(pixels(1))[:-30], "label": 0},
        {"image": png(pixels(1, (5, 4, 3))), "label": 0},
    ]
    folder = prepare(tmp_path / "tiny/1.0.0", "tfrecord", {"train": [shard]})
    split = open_tfds(folder, name=None).open("train")
    assert np.array_equal(split.decode(0), pixels(1))
    assert "the image is no JPEG, PNG, WebP, BMP, TIFF or GIF" in failure(split, 1)
    assert "record 2 of " in failure(split, 2)
    assert "the image is (5, 4, 3), not (4, 5, 3)" in failure(split, 3)


def test_a_data_set_that_does_not_say_its_format(tmp_path):
    folder = prepare(tmp_path / "tiny/1.0.0", "tfrecord", {"train": TRAIN}, fileFormat="")
    assert numbers(open_tfds(folder, name=None).open("train")) == list(range(20))


def test_data_sets_that_cannot_be_opened(tmp_path):
    folder = prepare(tmp_path / "tiny/1.0.0", "tfrecord", {"train": TRAIN})
    info = json.loads((folder / "dataset_info.json").read_text())
    (folder / "dataset_info.json").write_text(json.dumps(info | {"fileFormat": "parquet"}))
    assert f"{folder} holds parquet files; prepare" in refusal(lambda: open_tfds(tmp_path))
    (folder / "dataset_info.json").write_text("{")
    unknown = f"{folder} is not a data set that TensorFlow Datasets "
    assert refusal(lambda: open_tfds(tmp_path)).startswith(unknown)
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "features.json").unlink()
    assert refusal(lambda: open_tfds(tmp_path)).startswith(unknown)
