"""The tensors of a file's content."""

import json
import pickle
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch_files
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.errors import UsageError
from jaxtrain.pretrained.reading import read

TENSORS = {
    "conv.weight": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "count": np.array(7, np.int64),
}


def saved(value: Any) -> bytes:
    return torch_files.save(value)


STATE_DICT = torch_files.state_dict(TENSORS)
FILES = [saved(STATE_DICT), safetensors.numpy.save(TENSORS)]


def header(**entries: Any) -> bytes:
    """The beginning of a safetensors file."""
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


def refusal(content: bytes) -> str:
    with pytest.raises(UsageError) as raised:
        read(content)
    words = str(raised.value)
    assert words.isprintable()
    return words


def read_or_refuse(content: bytes) -> None:
    """Nothing else may happen."""
    words = ""
    try:
        read(content)
    except UsageError as error:
        words = str(error)
    assert words.isprintable()


def check(content: bytes, *notes: str) -> None:
    tensors, found = read(content)
    assert found == notes
    assert list(tensors) == list(TENSORS) or set(tensors) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        np.testing.assert_array_equal(tensors[name], tensor)


@pytest.mark.parametrize("content", FILES)
def test_both_kinds_of_files(content: bytes) -> None:
    check(content)


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict"])
def test_wrappers(key: str) -> None:
    check(saved({key: STATE_DICT}))
    check(
        saved({"epoch": 3, key: STATE_DICT, "optimizer": {"state": {0: {}}}}),
        f"of the file only {key} is read, not epoch, optimizer",
    )


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."]
)
def test_prefixes_that_all_names_have(prefix: str) -> None:
    check(saved({prefix + name: tensor for name, tensor in STATE_DICT.items()}))
    arrays = {prefix + name: tensor for name, tensor in TENSORS.items()}
    check(safetensors.numpy.save(arrays))


def test_a_prefix_that_some_names_have_stays() -> None:
    names = {"module.a": STATE_DICT["count"], "b": STATE_DICT["count"]}
    assert list(read(saved(names))[0]) == ["module.a", "b"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([STATE_DICT], "holds an object of type list, no state dict; save one: "),
        (3, "holds an object of type int, no state dict; save one: "),
        ({"epoch": 3, **STATE_DICT}, "holds other things than named tensors: epoch; save "),
        ({0: STATE_DICT["count"]}, "holds other things than named tensors: 0; save "),
        ({"model": {"weight": [1.0]}}, "holds other things than named tensors: weight; save "),
        ({}, "holds no tensor; name a file of weights"),
    ],
)
def test_no_state_dict(value: Any, words: str) -> None:
    assert refusal(saved(value)).startswith(words)


@pytest.mark.parametrize(
    "dtype", ["bool", "float16", "float32", "float64", "int16", "int32", "int8", "uint8"]
)
def test_dtypes_of_safetensors(dtype: str) -> None:
    values = np.array([[0, 1], [3, 2]], dtype)
    found = read(safetensors.numpy.save({"a": values}))[0]["a"]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, values)


def test_bfloat16_of_safetensors() -> None:
    content = header(a={"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]})
    raw = np.array([0x3F80, 0xC000, 0x3E80], "<u2").tobytes()
    found = read(content + raw)[0]["a"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [1, -2, 0.25])


def test_a_dtype_that_is_not_known() -> None:
    content = header(a={"dtype": "F8_E4M3", "shape": [3], "data_offsets": [0, 3]})
    assert refusal(content + b"123") == (
        "tensor a is of dtype F8_E4M3; convert it to float32 first"
    )


@pytest.mark.parametrize("length", range(118, 140))
def test_a_safetensors_file_may_begin_as_anything(length: int) -> None:
    """The length of its header is its first byte: 128, for one, begins a pickle."""
    entries = {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    filler = length - len(json.dumps({"__metadata__": {"x": ""}, **entries}))
    content = header(__metadata__={"x": "y" * filler}, **entries) + bytes(4)
    assert content[0] == length
    assert list(read(content)[0]) == ["a"]


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
        {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 2**62]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
        {"dtype": "X", "shape": [1], "data_offsets": [0, 4]},
        {"shape": [1], "data_offsets": [0, 4]},
    ],
)
def test_safetensors_that_lie(entry: dict[str, Any]) -> None:
    assert refusal(header(a=entry) + bytes(4)).startswith("is damaged or not whole (")


def test_a_header_that_is_longer_than_the_file() -> None:
    assert refusal((2**62).to_bytes(8, "little") + b"{}").startswith("is damaged or not whole (")


def test_pickles_from_before_pytorch_1_6() -> None:
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, 2)
    assert refusal(magic + pickle.dumps(1001, 2)) == (
        "is a bare pickle, which PyTorch wrote before version 1.6 and which only PyTorch reads; "
        "convert it: torch.save(torch.load(OLD, weights_only=True), NEW)"
    )


@pytest.mark.parametrize("content", [b"", b"PK", b"version https://git-lfs", bytes(999)])
def test_other_files(content: bytes) -> None:
    assert refusal(content).startswith("is neither a .safetensors file nor one that torch.save")


@pytest.mark.parametrize("content", FILES)
@given(st.data())
def test_a_file_that_is_cut_short_is_refused(content: bytes, data: st.DataObject) -> None:
    refusal(content[: data.draw(st.integers(0, len(content) - 1))])


@pytest.mark.parametrize("content", FILES)
@given(st.data())
def test_a_damaged_file_is_read_or_refused(content: bytes, data: st.DataObject) -> None:
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    read_or_refuse(bytes(damaged))


@given(st.sampled_from([b"", b"PK\x03\x04", b"\x80\x02", bytes(8) + b"{"]), st.binary())
def test_random_bytes_are_refused(start: bytes, content: bytes) -> None:
    refusal(start + content)


@given(st.binary())
def test_a_random_pickle_in_a_whole_archive_is_read_or_refused(content: bytes) -> None:
    members = torch_files.members(STATE_DICT) | {"data.pkl": content}
    read_or_refuse(torch_files.archive(members))


@given(st.data())
def test_a_damaged_pickle_in_a_whole_archive_is_read_or_refused(data: st.DataObject) -> None:
    members = torch_files.members({"model": STATE_DICT, "epoch": 3})
    code = bytearray(members["data.pkl"])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(code) - 1))
        code[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    read_or_refuse(torch_files.archive(members | {"data.pkl": bytes(code)}))
