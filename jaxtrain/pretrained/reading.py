"""The named tensors of a file's content."""

from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray

from jaxtrain.errors import UsageError, one_line
from jaxtrain.pretrained import pytorch
from jaxtrain.pretrained.encoding import decode
from jaxtrain.pretrained.words import damaged, shown

Tensors = dict[str, NDArray[Any]]

_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80"  # every pickle since protocol 2
# Keys under which trainers put the weights beside their own state.
_WRAPPERS = ("state_dict", "model", "model_state_dict")
# What wrappers of modules put before every name: DataParallel's, and that of torch.compile.
_PREFIXES = ("module.", "_orig_mod.")

_SAFETENSORS = {
    "BF16": "bfloat16",
    "BOOL": "bool",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U8": "uint8",
}


def read(content: bytes) -> tuple[Tensors, tuple[str, ...]]:
    """All tensors of a file, by name.

    Args:
        content: of a `.safetensors` file, or of one that `torch.save` wrote: a state dict, or a
            dict that has one under `state_dict`, `model` or `model_state_dict`.

    Returns:
        The tensors, in the file's order, without a prefix `module.` that all names have; bfloat16
        ones are float32, all others have their own dtype, and some may be views of one memory.
        And a note where the file holds more than that.

    Raises:
        UsageError: it is neither kind of file, is damaged, or holds something else.
    """
    notes: tuple[str, ...] = ()
    if content.startswith(_ZIP):
        tensors, notes = _state_dict(pytorch.read(content))
    elif content[8:9] == b"{":  # after its length, of any bytes, comes a header in JSON
        tensors = _safetensors(content)
    elif content.startswith(_PICKLE):
        raise UsageError(
            "is a bare pickle, which PyTorch wrote before version 1.6 and which only PyTorch "
            "reads; convert it: torch.save(torch.load(OLD, weights_only=True), NEW)"
        )
    else:
        raise UsageError(
            "is neither a .safetensors file nor one that torch.save wrote (or its beginning is "
            "damaged); name a file of weights"
        )
    if not tensors:
        raise UsageError("holds no tensor; name a file of weights")
    return _without_prefixes(tensors), notes


def _safetensors(content: bytes) -> Tensors:
    try:
        # Not the package's own reader of NumPy arrays, which does not know bfloat16.
        stored = safetensors.deserialize(content)
    except safetensors.SafetensorError as error:
        raise damaged(one_line(error)) from error
    tensors = {}
    for name, tensor in stored:
        dtype = tensor["dtype"]
        if dtype not in _SAFETENSORS:
            raise UsageError(
                f"tensor {shown(name)} is of dtype {dtype}; convert it to float32 first"
            )
        tensors[name] = decode(tensor["data"], _SAFETENSORS[dtype]).reshape(tensor["shape"])
    return tensors


def _state_dict(saved: Any) -> tuple[Tensors, tuple[str, ...]]:
    """The state dict in what `torch.save` wrote, and a note of what lies beside it."""
    notes: tuple[str, ...] = ()
    if isinstance(saved, dict):
        for key in _WRAPPERS:
            if isinstance(saved.get(key), dict):
                beside = [name for name in saved if name != key]
                notes = (f"of the file only {key} is read, not {shown(*beside)}",) if beside else ()
                saved = saved[key]
                break
    if not isinstance(saved, dict):
        raise UsageError(
            f"holds an object of type {type(saved).__name__}, no state dict; save one: "
            "torch.save(model.state_dict(), NEW)"
        )
    others = [name for name, value in saved.items() if not isinstance(value, np.ndarray)]
    others += [name for name in saved if not isinstance(name, str) and name not in others]
    if others:
        raise UsageError(
            f"holds other things than named tensors: {shown(*others)}; save the weights alone: "
            "torch.save(model.state_dict(), NEW)"
        )
    return saved, notes


def _without_prefixes(tensors: Tensors) -> Tensors:
    for prefix in _PREFIXES * 2:  # either may be around the other
        if all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): tensors[name] for name in tensors}
    return tensors
