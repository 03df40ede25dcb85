import gzip

import numpy as np
import pytest

from jaxtrain.data import idx as idx_format
from jaxtrain.errors import UsageError

IMAGES = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
LABELS = np.array([0, 2, 1], np.uint8)
IMAGE_BYTES = 4 + 12 + 60


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "file"
        path.write_bytes(content)
        return path

    return write


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_images_of_3_and_4_dimensions(write, idx, pack):
    images = idx_format.read_images(write(pack(idx(IMAGES))))
    assert images.dtype == np.uint8
    assert np.array_equal(images, IMAGES[..., np.newaxis])
    colour = np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)
    assert np.array_equal(idx_format.read_images(write(pack(idx(colour)))), colour)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32"])
def test_labels_of_every_integer_type(write, idx, pack, dtype):
    values = np.array([0, np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
    labels = idx_format.read_labels(write(pack(idx(values))))
    assert labels.dtype == np.int32
    assert labels.tolist() == values.tolist()


def test_plain_images_are_mapped_and_not_copied(write, idx):
    images = idx_format.read_images(write(idx(IMAGES)))
    base = images
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    assert type(base).__name__ == "mmap"
    assert type(images) is np.ndarray


def test_gzip_of_several_members_is_one_file(write, idx):
    raw = idx(IMAGES)
    content = gzip.compress(raw[:30]) + gzip.compress(raw[30:])
    assert np.array_equal(idx_format.read_images(write(content))[..., 0], IMAGES)


def flip(content, at):
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


HEADER = "0000 (08) (03|04)"
DAMAGED_IMAGES = {
    "no bytes": (lambda raw: b"", "is short: 0 bytes"),
    "3 bytes": (lambda raw: raw[:3], "is short: 3 bytes"),
    "header cut": (lambda raw: raw[:13], "is short: 13 bytes, its header alone needs 16"),
    "wrong magic": (lambda raw: b"\x89PNG" + raw[4:], f"starts with 89504e47, expected {HEADER}"),
    "float values": (lambda raw: b"\0\0\x0d\x03" + raw[4:], "starts with 00000d03, expected"),
    "labels": (lambda raw: b"\0\0\x08\x01" + raw[4:], "starts with 00000801, expected"),
    "2 dimensions": (lambda raw: b"\0\0\x08\x02" + raw[4:], "starts with 00000802, expected"),
    "short": (
        lambda raw: raw[:-1],
        f"is short: {IMAGE_BYTES - 1} bytes, its header says images of shape [3, 4, 5], which "
        f"needs {IMAGE_BYTES}",
    ),
    "trailing bytes": (lambda raw: raw + b"xy", f"is too long: {IMAGE_BYTES + 2} bytes"),
    "huge count": (
        lambda raw: raw[:4] + b"\xff" * 12 + raw[16:],
        f"which needs {16 + (2**32 - 1) ** 3}",
    ),
    "empty": (
        lambda raw: raw[:4] + b"\0\0\0\0" + raw[8:16],
        "is empty: its header says images of shape [0, 4, 5]",
    ),
    "no pixels": (lambda raw: raw[:8] + b"\0\0\0\0" + raw[12:16], "of shape [3, 0, 5]"),
    "gzip cut": (lambda raw: gzip.compress(raw)[:-12], "is damaged gzip: Compressed file ended"),
    "gzip header only": (lambda raw: gzip.compress(raw)[:5], "is damaged gzip: "),
    "gzip CRC": (lambda raw: flip(gzip.compress(raw), -8), "is damaged gzip: CRC check failed"),
    "gzip length": (lambda raw: flip(gzip.compress(raw), -2), "is damaged gzip: Incorrect length"),
    "gzip data": (lambda raw: flip(gzip.compress(raw), 12), "is damaged gzip: "),
    "gzip then junk": (lambda raw: gzip.compress(raw) + b"junk", "is damaged gzip: "),
    "gzip of short": (lambda raw: gzip.compress(raw[:-5]), f"is short: {IMAGE_BYTES - 5} bytes"),
}


@pytest.mark.parametrize("case", DAMAGED_IMAGES)
def test_damaged_images_are_named_in_one_line(write, idx, case):
    damage, said = DAMAGED_IMAGES[case]
    path = write(damage(idx(IMAGES)))
    with pytest.raises(UsageError) as error:
        idx_format.read_images(path)
    message = str(error.value)
    assert message.startswith(f"{path} ")
    assert said in message
    assert "\n" not in message


def test_labels_are_told_from_images(write, idx):
    with pytest.raises(UsageError, match=r"not an IDX file of labels: it starts with 00000803, ex"):
        idx_format.read_labels(write(idx(IMAGES)))
    with pytest.raises(UsageError, match=r"expected 0000 \(08\|09\|0b\|0c\) \(01\)"):
        idx_format.read_labels(write(b"\0\0\x0e\x01\0\0\0\1" + bytes(8)))


def test_a_short_file_of_wide_labels(write, idx):
    content = idx(np.arange(3, dtype=np.int32))
    with pytest.raises(UsageError, match=r"is short: 19 bytes, .* of shape \[3\], which needs 20"):
        idx_format.read_labels(write(content[:-1]))


def test_unreadable(tmp_path):
    with pytest.raises(UsageError, match="gone cannot be read: No such file"):
        idx_format.read_images(tmp_path / "gone")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        idx_format.read_images(tmp_path)
