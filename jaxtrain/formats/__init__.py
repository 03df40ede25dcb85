"""Trained models as files for other runtimes: a table of formats, and one module for each."""

import dataclasses
import importlib
from typing import Final, cast

from jaxtrain.errors import UsageError
from jaxtrain.formats.contract import Exporter, Options, Source

__all__ = [
    "CHOICES",
    "FORMATS",
    "Exporter",
    "Format",
    "Options",
    "Source",
    "Tolerance",
    "exporter",
    "tolerance",
]


@dataclasses.dataclass(frozen=True)
class Format:
    """A row of the table.

    Attributes:
        needs: what a program that loads it needs, as pip's words.
        extra: the extra of jaxtrain that it needs; None: none.
        reads: fields of `Options` that it reads; the others must not be set.
        dtype: what the exported model computes in; None: what the checkpoint's does.
    """

    needs: str
    extra: str | None = None
    reads: frozenset[str] = frozenset()
    dtype: str | None = None


FORMATS: Final = {
    "savedmodel": Format(needs="tensorflow", extra="tf"),
    "stablehlo": Format(needs="jax flatbuffers", reads=frozenset({"platforms"})),
    "tflite": Format(
        needs="ai-edge-litert",
        extra="tf",
        reads=frozenset({"quantize"}),
        dtype="float32",
    ),
    "onnx": Format(needs="onnxruntime", extra="onnx", dtype="float32"),
}


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """How far an export may be from its checkpoint.

    Attributes:
        difference: of any probability, the largest.
        agreement: share of the examples that get the same class, the least.
    """

    difference: float
    agreement: float


# Of float32 others may be classes whose probabilities are equal but for the rounding. Eight bits
# cost a classifier of 1000 classes some percent of agreement.
_FLOAT32: Final = Tolerance(1e-4, 0.98)
_HALF: Final = Tolerance(0.05, 0.95)
_QUANTIZED: Final = {"float16": Tolerance(0.02, 0.98), "int8": Tolerance(0.5, 0.9)}

# The choices of each field of `Options`.
CHOICES: Final = {
    "platforms": ("cpu", "cuda", "rocm", "tpu"),
    "quantize": ("float16", "int8"),
}


def tolerance(quantize: str | None, dtype: str) -> Tolerance:
    """What suits an export, unless a person says otherwise.

    Args:
        quantize: as in `Options`.
        dtype: what the checkpoint's model computes in; an export rounds elsewhere than that.
    """
    if quantize is not None:
        return _QUANTIZED[quantize]
    return _FLOAT32 if dtype == "float32" else _HALF


def exporter(name: str) -> Exporter:
    """The exporter of a format; its libraries, which are heavy and extras, are imported now.

    Raises:
        UsageError: one of them is not installed.
    """
    try:
        return cast(Exporter, importlib.import_module(f"jaxtrain.formats.{name}"))
    except ModuleNotFoundError as error:
        extra = FORMATS[name].extra
        if extra is None or (error.name or "").startswith("jaxtrain"):
            raise
        raise UsageError(
            f"format {name} needs {error.name}, which is not installed; "
            f"pip install 'jaxtrain[{extra}]'"
        ) from error
