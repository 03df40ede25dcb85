"""Trained models as files for other runtimes: a table of formats, and one module for each."""

import dataclasses
import importlib
from typing import Final, cast

from jaxtrain.errors import UsageError
from jaxtrain.formats.contract import Exporter, Options, Source

__all__ = ["FORMATS", "Exporter", "Format", "Options", "Source", "exporter"]


@dataclasses.dataclass(frozen=True)
class Format:
    """A row of the table.

    Attributes:
        extra: the extra of jaxtrain that it needs; None: none.
        reads: fields of `Options` that it reads; the others must not be set.
        dtype: what the exported model computes in; None: what the checkpoint's does.
    """

    extra: str | None = None
    reads: frozenset[str] = frozenset()
    dtype: str | None = None


FORMATS: Final = {
    "savedmodel": Format(extra="tf"),
    "stablehlo": Format(reads=frozenset({"platforms"})),
    "tflite": Format(extra="tf", reads=frozenset({"quantize"}), dtype="float32"),
    "onnx": Format(extra="onnx", dtype="float32"),
}


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
