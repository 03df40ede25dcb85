"""From a path to variables."""

from collections.abc import Mapping
from typing import Any

from jaxtrain import files
from jaxtrain.errors import UsageError, one_line
from jaxtrain.files import AnyPath
from jaxtrain.pretrained import fitting, reading
from jaxtrain.pretrained.fitting import Imported


def load(path: AnyPath, abstract: Mapping[str, Any]) -> Imported:
    """The weights of a file as variables of a model.

    Args:
        path: a `.safetensors` file, or one that `torch.save` wrote; told by its content.
        abstract: the model's parameters and collections, as of `TrainState.model`: nested
            mappings whose leaves have a `shape`.

    Returns:
        The variables that the file gives, float32, and what a person should know of them.

    Raises:
        UsageError: the file cannot be read, is damaged or holds other things than tensors, or
            its tensors are not those of the model.
    """
    try:
        with files.explained(path):
            content = path.read_bytes()
    except OSError as error:
        reason = error.strerror or one_line(error)
        raise UsageError(
            f"model.init_from={path} cannot be read: {reason}; name a .safetensors or .pth file"
        ) from error
    try:
        tensors, notes = reading.read(content)
        imported = fitting.fit(tensors, abstract)
    except UsageError as error:
        raise UsageError(f"model.init_from={path}: {error}") from error
    return Imported(imported.variables, (*notes, *imported.notes))
