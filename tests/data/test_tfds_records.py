from concurrent import futures

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tfds_sets import write_records

from jaxtrain.data.tfds.records import FORMATS, features
from jaxtrain.errors import UsageError

RECORDS = [bytes([number]) * (number * 7 % 50) for number in range(40)]
# Written by TensorFlow 2.21: an empty record, "one", and "a record of 25 bytes     ".
BY_TENSORFLOW = bytes.fromhex(
    "000000000000000029039807d8ea82a20300000000000000b099490e6f6e650140550819000000000000008bf10828"
    "61207265636f7264206f662032352062797465732020202020d09ec6fc"
)


@pytest.fixture(params=FORMATS)
def file(request, tmp_path):
    """A file of `RECORDS`, and its format."""
    write_records(tmp_path / "file", request.param, RECORDS)
    return tmp_path / "file", FORMATS[request.param]


def test_scan_and_read(file):
    path, record_format = file
    scanned = list(record_format.scan(path))
    assert [content for content, _ in scanned] == RECORDS
    opened = record_format.open(path, np.array([len(record) for record in RECORDS]))
    for position in (39, 0, 8, 8, 20):
        assert opened.read(position) == RECORDS[position]


def test_threads_share_an_open_file(file):
    path, record_format = file
    opened = record_format.open(path, np.array([len(record) for record in RECORDS]))
    positions = np.random.RandomState(0).randint(0, len(RECORDS), 4000).tolist()
    with futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(opened.read, positions)) == [RECORDS[each] for each in positions]


def test_what_tensorflow_writes(tmp_path):
    (tmp_path / "file").write_bytes(BY_TENSORFLOW)
    scanned = list(FORMATS["tfrecord"].scan(tmp_path / "file"))
    assert [content for content, _ in scanned] == [b"", b"one", b"a record of 25 bytes     "]
    assert scanned[0] == (b"", 0)
    write_records(tmp_path / "ours", "tfrecord", [content for content, _ in scanned])
    assert (tmp_path / "ours").read_bytes() == BY_TENSORFLOW


def test_checksums_are_crc_32c(file):
    path, record_format = file
    name = next(name for name, each in FORMATS.items() if each is record_format)
    write_records(path, name, [b"123456789"])
    assert list(record_format.scan(path)) == [(b"123456789", 0xE3069283)]


@settings(max_examples=300, deadline=None)
@given(place=st.integers(0, 2**16), bit=st.integers(0, 7), cut=st.booleans())
@pytest.mark.parametrize("name", FORMATS)
def test_damage_is_noticed(tmp_path_factory, name, place, bit, cut):
    path = tmp_path_factory.getbasetemp() / f"damaged.{name}"
    write_records(path, name, RECORDS)
    content = bytearray(path.read_bytes())
    place %= len(content)
    if cut:
        del content[place:]
    else:
        content[place] ^= 1 << bit
    path.write_bytes(content)
    found = []
    damage = None
    try:
        for record, _ in FORMATS[name].scan(path):
            found.append(record)
    except UsageError as error:
        damage = str(error)
    assert found == RECORDS[: len(found)]
    if damage is not None:
        assert damage.startswith(f"{path} is damaged at record {len(found)}: ")
        assert "\n" not in damage
    elif name == "tfrecord":
        assert cut  # between two records, so that there are too few
        assert len(found) < len(RECORDS)
    else:
        # Some bytes between records mean nothing; a file without its end is one without records.
        assert len(found) in (0, len(RECORDS))


def test_damage_is_located(tmp_path):
    path = tmp_path / "file"
    write_records(path, "tfrecord", [b"one", b"two", b"three"])
    content = path.read_bytes()
    for damaged, complaint in {
        content[:-1]: "record 2: the file ends in it",
        content[:24]: "record 1: the file ends in its header",
        content.replace(b"two", b"too"): "record 1: its checksum is wrong",
        content.replace(b"\x05", b"\x06"): "record 2: the checksum of its length is wrong",
    }.items():
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match=complaint):
            list(FORMATS["tfrecord"].scan(path))


def test_a_missing_file(tmp_path):
    for record_format in FORMATS.values():
        with pytest.raises(UsageError, match=r"file cannot be read: No such file or directory;"):
            list(record_format.scan(tmp_path / "file"))


def test_features_of_what_is_no_example():
    with pytest.raises(ValueError, match=r"it is no tf\.train\.Example"):
        features(b"\xff")
    assert not features(b"")["label"].int64_list.value
