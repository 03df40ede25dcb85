"""What `torch.save` wrote, made by hand."""

import dataclasses
import io
import struct
import zipfile
import zlib
from typing import Any

import numpy as np
import pytest
import torch_files
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch_files import Called, Storage, Tensor

from jaxtrain.errors import UsageError
from jaxtrain.pretrained import pytorch

VALUES = np.array([0, 1, -2, 3.5, 1024, -0.125], np.float32)


def read(value: Any) -> Any:
    return pytorch.read(torch_files.save(value))


def refusal(content: bytes) -> str:
    with pytest.raises(UsageError) as raised:
        pytorch.read(content)
    words = str(raised.value)
    assert words.isprintable()
    return words


def view(array: NDArray[Any], offset: Any, sizes: Any, strides: Any) -> Tensor:
    return Tensor(torch_files.storage(array), offset, sizes, strides)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", torch_files.KINDS)
def test_every_dtype_in_both_byte_orders(dtype: str, order: str) -> None:
    values = np.abs(VALUES).astype(dtype).reshape(2, 3)
    tensor = dataclasses.replace(
        torch_files.tensor(values), storage=torch_files.storage(values, order)
    )
    name = b"little" if order == "<" else b"big"
    found = pytorch.read(torch_files.archive(torch_files.members([tensor], name)))[0]
    assert found.dtype.newbyteorder("=") == dtype
    np.testing.assert_array_equal(found, values)


@given(st.lists(st.floats(width=16), min_size=1, max_size=9))
def test_bfloat16_becomes_float32(numbers: list[float]) -> None:
    upper = np.array(numbers, np.float32).view(np.uint32) & 0xFFFF0000
    values = upper.view(np.float32)
    (found,) = read([torch_files.bfloat16(values)])
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, values)


def test_bfloat16_of_the_other_byte_order() -> None:
    storage = Storage(bytes.fromhex("3f80c000"), "BFloat16Storage", 2)
    members = torch_files.members([Tensor(storage, 0, (2,), (1,))], b"big")
    np.testing.assert_array_equal(pytorch.read(torch_files.archive(members))[0], [1, -2])


def test_files_without_a_byte_order_are_little_endian() -> None:
    members = torch_files.members([torch_files.tensor(VALUES)])
    del members["byteorder"]
    np.testing.assert_array_equal(pytorch.read(torch_files.archive(members))[0], VALUES)


@given(st.data())
def test_any_view_of_a_storage(data: st.DataObject) -> None:
    """Slices, transposed and broadcast, as NumPy makes them."""
    base = np.arange(2 * 3 * 4 * 5, dtype=np.int32).reshape(2, 3, 4, 5)
    slices = tuple(
        slice(data.draw(st.integers(0, size - 1)), size, data.draw(st.integers(1, 3)))
        for size in base.shape
    )
    expected = base[slices].transpose(data.draw(st.permutations(range(4))))
    expected = np.broadcast_to(expected, (data.draw(st.integers(0, 2)), *expected.shape))
    offset = sum(
        part.start * stride // 4 for part, stride in zip(slices, base.strides, strict=True)
    )
    strides = tuple(stride // 4 for stride in expected.strides)
    (found,) = read([view(base, offset, expected.shape, strides)])
    np.testing.assert_array_equal(found, expected)


def test_tensors_of_one_storage_share_memory() -> None:
    storage = torch_files.storage(np.arange(6, dtype=np.float32))
    first, second = read([Tensor(storage, 0, (4,), (1,)), Tensor(storage, 2, (4,), (1,))])
    assert np.shares_memory(first, second)
    assert (first[2:] == second[:2]).all()


@pytest.mark.parametrize(("sizes", "offset"), [((), 0), ((0,), 0), ((3, 0, 2), 5)])
def test_scalars_and_empty_tensors(sizes: tuple[int, ...], offset: int) -> None:
    storage = np.ones(1 if sizes == () else 0, np.float32)
    (found,) = read([view(storage, offset, sizes, (1,) * len(sizes))])
    assert (found.shape, found.dtype) == (sizes, np.float32)


def test_containers_and_parameters() -> None:
    tensor = torch_files.tensor(VALUES)
    parameter = Called(
        "torch._utils._rebuild_parameter", (tensor, True, Called(torch_files.ORDERED, ()))
    )
    found = read({"model": {"weight": parameter}, "epoch": 3, "betas": [0.9, (None, True)]})
    np.testing.assert_array_equal(found["model"].pop("weight"), VALUES)
    assert found == {"model": {}, "epoch": 3, "betas": [0.9, (None, True)]}


def test_tensors_cannot_be_written_to() -> None:
    (found,) = read([torch_files.tensor(VALUES)])
    assert not found.flags.writeable


LIES = [
    (1, (6,), (1,)),
    (0, (7,), (1,)),
    (0, (2, 3), (4, 1)),
    (6, (1,), (1,)),
    (6, (), ()),
    (7, (), ()),
    (-1, (2,), (1,)),
    (5, (6,), (-1,)),
    (0, (-1,), (1,)),
    (0, (2, 2), (1,)),
    (0, (2**31,), (1,)),
    (0, (2**40, 2**40), (0, 0)),
    (0, (2,), (2**62,)),
    (0, (2,), (2**80,)),
    (2**80, (2,), (1,)),
    (0, (2**80,), (1,)),
    (0, (0, 2**80), (1, 1)),
    (0, (1,) * 99, (1,) * 99),
    (0.0, (2,), (1,)),
    (0, (2.0,), (1,)),
    (0, ("2",), (1,)),
    (0, 6, 1),
    (0, [6], [1]),
    (None, (6,), (1,)),
]


@pytest.mark.parametrize(("offset", "sizes", "strides"), LIES)
def test_tensors_outside_of_their_storage(offset: Any, sizes: Any, strides: Any) -> None:
    content = torch_files.save([view(VALUES, offset, sizes, strides)])
    assert refusal(content).startswith("is damaged or not whole (a tensor ")


numbers = st.integers(-1, 8) | st.integers()
tuples = st.lists(numbers, max_size=4).map(tuple)


@given(numbers, tuples, tuples)
def test_no_view_reaches_outside_of_its_storage(
    offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    tensor = view(np.arange(6, dtype=np.float32), offset, sizes, strides)
    try:
        (found,) = read([tensor])
    except UsageError:
        return
    assert found.shape == sizes
    if found.size:
        first, last = offset, offset + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        assert 0 <= first <= last < 6
        assert (found[(0,) * len(sizes)], found[(-1,) * len(sizes)]) == (first, last)


@pytest.mark.parametrize("elements", [5, 7, 0, -1, 2**40, 2**70])
def test_storages_of_another_size_than_they_say(elements: int) -> None:
    storage = dataclasses.replace(torch_files.storage(VALUES), elements=elements)
    words = refusal(torch_files.save([Tensor(storage, 0, (0,), (1,))]))
    assert words.startswith("is damaged or not whole (")
    assert "24 bytes" in words


def test_a_storage_of_a_dtype_that_is_not_known() -> None:
    storage = Storage(b"12345678", "ComplexFloatStorage", 1)
    assert refusal(torch_files.save([Tensor(storage, 0, (1,), (1,))])).startswith(
        "holds a torch.ComplexFloatStorage, which is not read"
    )


def test_one_storage_of_two_dtypes() -> None:
    code, storages = torch_files.dumps([torch_files.tensor(VALUES), torch_files.tensor(VALUES)])
    code = code.replace(b"X\x01\x00\x00\x001", b"X\x01\x00\x00\x000")
    (first, second), changed = (
        pytorch.read(torch_files.archive({"data.pkl": code, "data/0": storages["0"]})),
        code[::-1].replace(b"torch\nFloatStorage"[::-1], b"torch\nIntStorage"[::-1], 1)[::-1],
    )
    assert np.shares_memory(first, second)
    assert refusal(torch_files.archive({"data.pkl": changed, "data/0": storages["0"]})) == (
        "is damaged or not whole (a storage of two dtypes); get it again"
    )


MALFORMED = [
    (Called("torch._utils._rebuild_tensor_v2", ()), "a tensor that is none"),
    (Called("torch._utils._rebuild_tensor_v2", (1, 0, (), ())), "a tensor that is none"),
    (Called("torch._utils._rebuild_parameter", (1, True)), "a parameter that is none"),
    (Called("torch._utils._rebuild_parameter", ()), "a parameter that is none"),
    (Called("collections.OrderedDict", ([],)), "an OrderedDict with arguments"),
]


@pytest.mark.parametrize(("value", "words"), MALFORMED)
def test_calls_with_other_arguments(value: Called, words: str) -> None:
    assert refusal(torch_files.save(value)) == f"is damaged or not whole ({words}); get it again"


@pytest.mark.parametrize("identity", [b"K\x01", b")", b"N", b"X\x07\x00\x00\x00storage"])
def test_persistent_ids_of_no_storage(identity: bytes) -> None:
    content = torch_files.archive({"data.pkl": b"\x80\x02" + identity + b"Q."})
    assert refusal(content) == "is damaged or not whole (a storage that is none); get it again"


def test_a_storage_that_is_missing() -> None:
    members = torch_files.members([torch_files.tensor(VALUES)])
    del members["data/0"]
    assert refusal(torch_files.archive(members)) == (
        "is damaged or not whole (it lacks data/0); get it again"
    )


def test_a_storage_whose_bytes_are_not_those_written() -> None:
    content = torch_files.save([torch_files.tensor(VALUES)])
    flipped = content.replace(VALUES.tobytes(), VALUES[::-1].tobytes())
    assert flipped != content
    assert "CRC" in refusal(flipped)


def test_compressed_files_are_refused() -> None:
    members = torch_files.members([torch_files.tensor(VALUES)])
    assert refusal(torch_files.archive(members, zipfile.ZIP_DEFLATED)).startswith(
        "holds byteorder compressed, which torch.save never does"
    )


def test_other_archives_are_refused() -> None:
    assert refusal(torch_files.archive({"readme.txt": b"hello"})) == (
        "is a zip archive of 1 files, but not of torch.save: it holds 0 data.pkl; name a file of "
        "weights"
    )
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/data.pkl", b"")
        archive.writestr("b/data.pkl", b"")
    assert "it holds 2 data.pkl" in refusal(file.getvalue())


def test_a_pickle_that_only_fills_the_memory() -> None:
    content = torch_files.archive({"data.pkl": b"}" * (8 * 2**20 + 1)})
    assert refusal(content) == (
        "is damaged or not whole (data.pkl is of 8,388,609 bytes); get it again"
    )


def nested(code: bytes, names: list[bytes], innermost: bytes) -> bytes:
    """An archive with a pickle and members of which each is the next with its header."""
    local, entries = b"", []
    for name in [*reversed(names), b"weights/data.pkl"]:
        inner = code if name == b"weights/data.pkl" else local or innermost
        sizes = (zlib.crc32(inner), len(inner), len(inner), len(name), 0)
        fields = struct.pack("<HHHHHIIIHH", 20, 0, 0, 0, 33, *sizes)
        header = b"PK\x03\x04" + fields + name
        entries.append((name, fields, len(local or innermost) + len(header)))
        local = header + inner + (local if inner is code else b"")
    # `entries` has how far each header lies from the end of the innermost member.
    entries[-1] = (*entries[-1][:2], len(local))
    central = b"".join(
        b"PK\x01\x02\x14\x00" + fields + struct.pack("<HHHII", 0, 0, 0, 0, len(local) - far) + name
        for name, fields, far in entries
    )
    counts = (0, 0, len(entries), len(entries), len(central), len(local), 0)
    return local + central + b"PK\x05\x06" + struct.pack("<HHHHIIH", *counts)


@pytest.mark.parametrize(("members", "whole"), [(1, True), (9, False)])
def test_storages_that_share_bytes_of_the_file(members: int, whole: bool) -> None:
    """Otherwise a small file could take any amount of memory."""
    names = [f"weights/data/{index}".encode() for index in range(members)]
    header_bytes = 30 + len(names[0])
    sizes = [1000 + header_bytes * (members - 1 - index) for index in range(members)]
    tensors = [Tensor(Storage(b"", "ByteStorage", size), 0, (1,), (1,)) for size in sizes]
    content = nested(torch_files.dumps(tensors)[0], names, b"x" * 1000)
    if whole:
        assert pytorch.read(content)[0] == ord("x")
    else:
        assert refusal(content).startswith("is damaged or not whole (")
