"""What `torch.save` wrote (since PyTorch 1.6), without PyTorch.

The file is a zip archive with one folder. In it, `data.pkl` is the pickled object, whose tensors
are views (offset, sizes, strides) of storages; `data/<key>` is the content of a storage, as it is,
and `byteorder` says which way round.
"""

import dataclasses
import io
import zipfile
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from jaxtrain.errors import UsageError, brief
from jaxtrain.pretrained import pickles
from jaxtrain.pretrained.encoding import decode
from jaxtrain.pretrained.pickles import Name
from jaxtrain.pretrained.words import damaged, shown

_STORAGES = {
    "torch.BFloat16Storage": "bfloat16",
    "torch.BoolStorage": "bool",
    "torch.ByteStorage": "uint8",
    "torch.CharStorage": "int8",
    "torch.DoubleStorage": "float64",
    "torch.FloatStorage": "float32",
    "torch.HalfStorage": "float16",
    "torch.IntStorage": "int32",
    "torch.LongStorage": "int64",
    "torch.ShortStorage": "int16",
}
# A tensor takes a hundred bytes of the pickle; what is far longer only fills the memory.
_LARGEST_PICKLE_BYTES = 8 * 2**20


def read(content: bytes) -> Any:
    """The object that `torch.save` wrote.

    Args:
        content: of the file.

    Returns:
        As `pickles.load`; tensors and parameters are read-only arrays, those of one storage
        views of one memory, and bfloat16 ones float32.

    Raises:
        UsageError: it is damaged, holds other things than tensors in plain containers, or is
            another zip archive.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except Exception as error:  # a damaged archive raises many types
        raise damaged(brief(error)) from error
    with archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        roots = [name.removesuffix("data.pkl") for name in entries if name.endswith("/data.pkl")]
        if len(roots) != 1:
            raise UsageError(
                f"is a zip archive of {len(entries)} files, but not of torch.save: it holds "
                f"{len(roots)} data.pkl; name a file of weights"
            )
        return _Archive(archive, entries, roots[0], len(content)).load()


@dataclasses.dataclass(frozen=True)
class _Storage:
    """The memory of tensors: an array `[elements]`."""

    name: str
    elements: NDArray[Any]


class _Archive:
    """An archive that is open, and its storages."""

    def __init__(
        self,
        archive: zipfile.ZipFile,
        entries: dict[str, zipfile.ZipInfo],
        root: str,
        total_bytes: int,
    ) -> None:
        self._archive = archive
        self._entries = entries
        self._root = root
        self._bytes_left = total_bytes
        self._storages: dict[str, _Storage] = {}
        big = f"{root}byteorder" in entries and self._content("byteorder", 16) == b"big"
        self._order: Literal["<", ">"] = ">" if big else "<"

    def load(self) -> Any:
        known: dict[str, pickles.Call | None] = {
            **dict.fromkeys(_STORAGES),
            "collections.OrderedDict": _ordered_dict,
            "torch._utils._rebuild_tensor_v2": _tensor,
            "torch._utils._rebuild_parameter": _parameter,
        }
        return pickles.load(self._content("data.pkl", _LARGEST_PICKLE_BYTES), known, self._storage)

    def _content(self, name: str, most_bytes: int) -> bytes:
        """A file of the archive, which is to be no larger than `most_bytes`."""
        entry = self._entries.get(self._root + name)
        if entry is None:
            raise damaged(f"it lacks {shown(name)}")
        if entry.compress_type != zipfile.ZIP_STORED:
            raise UsageError(
                f"holds {shown(name)} compressed, which torch.save never does; save it with PyTorch"
            )
        # Entries that share bytes could make a small file take any amount of memory.
        self._bytes_left -= entry.file_size
        if entry.file_size > most_bytes or self._bytes_left < 0:
            raise damaged(f"{shown(name)} is of {entry.file_size:,} bytes")
        try:
            return self._archive.read(entry)
        except Exception as error:  # a damaged archive raises many types
            raise damaged(brief(error)) from error

    def _storage(self, persistent_id: Any) -> _Storage:
        """The storage of `("storage", type, key, device, elements)`."""
        match persistent_id:
            case ("storage", Name(kind), str(key), str(), int(size)) if kind in _STORAGES:
                pass
            case _:
                raise damaged("a storage that is none")
        dtype = _STORAGES[kind]
        if key not in self._storages:
            itemsize = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
            raw = self._content(f"data/{key}", max(0, size * itemsize))
            if len(raw) != size * itemsize:
                raise damaged(
                    f"storage {shown(key)} is of {len(raw):,} bytes, not {size * itemsize:,}"
                )
            self._storages[key] = _Storage(kind, decode(raw, dtype, self._order))
        if self._storages[key].name != kind:
            raise damaged("a storage of two dtypes")
        return self._storages[key]


def _ordered_dict(arguments: tuple[Any, ...]) -> dict[str, Any]:
    if arguments:
        raise damaged("an OrderedDict with arguments")
    return {}


def _tensor(arguments: tuple[Any, ...]) -> NDArray[Any]:
    """The tensor of (storage, offset, sizes, strides, ...), the last three in elements."""
    match arguments:
        case (_Storage(elements=elements), int(offset), tuple(sizes), tuple(strides), *_):
            pass
        case _:
            raise damaged("a tensor that is none")
    numbers = (offset, *sizes, *strides)
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise damaged("a tensor with a negative size")
    itemsize = elements.itemsize
    try:
        if 0 in sizes:  # its offset may lie outside
            return np.zeros(sizes, elements.dtype)
        # It checks that no element lies outside of the buffer.
        return np.ndarray(
            sizes,
            elements.dtype,
            buffer=elements.data,
            offset=offset * itemsize,
            strides=tuple(stride * itemsize for stride in strides),
        )
    except (ValueError, OverflowError) as error:
        raise damaged("a tensor outside of its storage") from error


def _parameter(arguments: tuple[Any, ...]) -> NDArray[Any]:
    """The tensor of (tensor, requires_grad, hooks)."""
    match arguments:
        case (np.ndarray() as tensor, *_):
            return tensor
    raise damaged("a parameter that is none")
