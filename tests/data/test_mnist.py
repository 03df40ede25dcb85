import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest

import jaxtrain.data
from jaxtrain.config.schema import DataConfig

FOLDER = Path(jaxtrain.data.__file__).parent / "mnist"

# SHA-256 of the uncompressed files.
SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
IMAGES_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
}


@pytest.mark.parametrize("name", SHA256)
def test_checksums(name):
    content = gzip.decompress((FOLDER / f"{name}.gz").read_bytes())
    assert hashlib.sha256(content).hexdigest() == SHA256[name]
    if name in IMAGES_MD5:
        assert hashlib.md5(content).hexdigest() == IMAGES_MD5[name]


def test_the_files_are_the_packages_own_and_their_license_is_beside_them():
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(
        ["README.md", *(f"{name}.gz" for name in SHA256)]
    )
    assert "Attribution-ShareAlike 3.0" in (FOLDER / "README.md").read_text()


def test_it_is_mnist():
    dataset = jaxtrain.data.open_dataset(DataConfig())
    assert dataset.class_names == tuple("0123456789")
    train, test = dataset.train, dataset.eval
    assert (train.name, train.size, train.image_shape) == ("train", 60000, (28, 28, 1))
    assert (test.name, test.size, test.image_shape) == ("test", 10000, (28, 28, 1))
    assert (train.nbytes, test.nbytes) == (47040000, 7840000)
    assert np.bincount(train.labels).tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
    ]  # fmt: skip
    assert np.bincount(test.labels).tolist() == [
        980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009,
    ]  # fmt: skip
    # The published mean and standard deviation of the training images.
    assert round(float(train.images.mean()) / 255, 4) == 0.1307
    assert round(float(train.images.std()) / 255, 4) == 0.3081
    assert train.labels[:5].tolist() == [5, 0, 4, 1, 9]
