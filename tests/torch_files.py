"""Files as `torch.save` writes them, made without PyTorch."""

import dataclasses
import io
import pickle
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

KINDS = {
    "bool": "Bool",
    "float16": "Half",
    "float32": "Float",
    "float64": "Double",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "int8": "Char",
    "uint8": "Byte",
}

ORDERED = "collections.OrderedDict"


@dataclasses.dataclass(frozen=True)
class Storage:
    """The content of a storage; tensors share one that is the same object."""

    raw: bytes
    kind: str
    elements: int


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor as PyTorch pickles it: a view of a storage, in elements."""

    storage: Storage
    offset: Any
    sizes: Any
    strides: Any


@dataclasses.dataclass(frozen=True)
class Called:
    """A call that the pickle makes."""

    name: str
    arguments: tuple[Any, ...]


def storage(array: NDArray[Any], order: str = "<") -> Storage:
    flat = np.ascontiguousarray(array).ravel()
    raw = flat.astype(flat.dtype.newbyteorder(order)).tobytes()
    return Storage(raw, f"{KINDS[array.dtype.name]}Storage", array.size)


def bfloat16(array: NDArray[np.float32]) -> Tensor:
    """A tensor of the upper halves of the numbers."""
    upper = (np.ascontiguousarray(array).view(np.uint32) >> 16).astype("<u2")
    whole = tensor(array)
    return dataclasses.replace(
        whole, storage=Storage(upper.tobytes(), "BFloat16Storage", array.size)
    )


def tensor(array: NDArray[Any]) -> Tensor:
    """A tensor of its own storage, which is in order."""
    strides = np.ascontiguousarray(array).strides if array.ndim else ()
    return Tensor(
        storage(array), 0, array.shape, tuple(stride // array.itemsize for stride in strides)
    )


def state_dict(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    return {name: tensor(np.asarray(array)) for name, array in arrays.items()}


class _Pickle:
    """Writes protocol 2, as `torch.save` does, and knows its storages by their keys."""

    def __init__(self) -> None:
        self.storages: dict[int, tuple[str, Storage]] = {}

    def code(self, value: Any) -> bytes:
        """The instructions that push a value."""
        match value:
            case Tensor():
                sizes = (value.offset, value.sizes, value.strides, False, Called(ORDERED, ()))
                return (
                    name("torch._utils._rebuild_tensor_v2")
                    + b"("
                    + self._storage(value.storage)
                    + b"".join(map(self.code, sizes))
                    + b"tR"
                )
            case Called():
                return name(value.name) + self.code(value.arguments) + b"R"
            case dict():
                items = b"".join(self.code(item) for pair in value.items() for item in pair)
                return b"}(" + items + b"u"
            case list() | tuple():
                start, end = (b"](", b"e") if isinstance(value, list) else (b"(", b"t")
                return start + b"".join(map(self.code, value)) + end
            case _:
                return pickle.dumps(value, 2)[2:-1]

    def _storage(self, value: Storage) -> bytes:
        key, _ = self.storages.setdefault(id(value), (str(len(self.storages)), value))
        kind = name(f"torch.{value.kind}")
        rest = b"".join(map(self.code, (key, "cpu", value.elements)))
        return b"(" + self.code("storage") + kind + rest + b"tQ"


def name(dotted: str) -> bytes:
    module, _, attribute = dotted.rpartition(".")
    return f"c{module}\n{attribute}\n".encode()


def dumps(value: Any) -> tuple[bytes, dict[str, bytes]]:
    """The pickle of a value, and its storages by their keys."""
    writer = _Pickle()
    code = b"\x80\x02" + writer.code(value) + b"."
    return code, {key: content.raw for key, content in writer.storages.values()}


def archive(members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip archive with the members in one folder."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as opened:
        for member, content in members.items():
            opened.writestr(f"weights/{member}", content)
    return file.getvalue()


def members(value: Any, byteorder: bytes = b"little") -> dict[str, bytes]:
    """What `torch.save` puts into the archive."""
    code, storages = dumps(value)
    data = {f"data/{key}": raw for key, raw in storages.items()}
    return {"data.pkl": code, "byteorder": byteorder, **data, "version": b"3\n"}


def save(value: Any) -> bytes:
    """The content of the file that `torch.save` makes of a value with `Tensor`s in it."""
    return archive(members(value))
