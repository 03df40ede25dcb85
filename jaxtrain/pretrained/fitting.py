"""The tensors of a PyTorch ResNet as variables of a model, each in its place."""

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxtrain.errors import UsageError
from jaxtrain.pretrained import naming
from jaxtrain.pretrained.naming import Path
from jaxtrain.pretrained.words import shown

Arrays = dict[Path, NDArray[Any]]
Shapes = dict[Path, tuple[int, ...]]

_STEM = ("params", "stem_conv", "kernel")
_HEAD_KERNEL = ("params", "head", "kernel")
_HEAD_BIAS = ("params", "head", "bias")
_HEAD = (_HEAD_KERNEL, _HEAD_BIAS)
_STEM_SIDES = {3: "cifar", 7: "imagenet"}
_BLOCK = re.compile(r"stage(\d+)_block\d+")


@dataclasses.dataclass(frozen=True)
class Imported:
    """What a file gives to a model.

    Attributes:
        variables: float32 arrays as in `TrainState.model`: all variables, or all but the head.
        notes: what a person should know of them, a line each.
    """

    variables: dict[str, Any]
    notes: tuple[str, ...]


def fit(tensors: Mapping[str, NDArray[Any]], abstract: Mapping[str, Any]) -> Imported:
    """The variables that a file's tensors are.

    Every tensor must be one of the model's variables, and every variable one of the tensors, in
    its shape, with two exceptions. A head for another number of classes is left out, and may be
    missing. And where the model takes grey images, the first kernels of red, green and blue are
    summed, which is what they make of a grey image in all three channels. That is exact if the
    three were normalised alike in training. ImageNet's means and deviations differ a little; the
    means of these, 0.449 and 0.226, are the closest that one channel can have.

    Args:
        tensors: by the names of torchvision, timm or Hugging Face; any layout in memory.
        abstract: the model's parameters and collections, as of `TrainState.model`: nested
            mappings whose leaves have a `shape`.

    Raises:
        UsageError: names or shapes differ, or a tensor holds no finite floats.
    """
    wanted = _shapes(abstract)
    if _STEM not in wanted:
        raise UsageError("holds the weights of a ResNet; set model.name to one")
    names, unknown = naming.places(tensors)
    there = {path: _arranged(tensors[name]) for path, name in names.items()}
    _check_architecture(there, wanted)
    notes = []
    if head := _other_head(there, wanted):
        notes.append(head)
        for path in _HEAD:
            there.pop(path, None)
            wanted.pop(path)
    grey = _STEM in there and there[_STEM].shape[2:3] == (3,) and wanted[_STEM][2] == 1
    if grey:
        notes.append("the first kernels of red, green and blue are summed for grey images")
        wanted[_STEM] = (*wanted[_STEM][:2], 3, *wanted[_STEM][3:])
    _check_places([*unknown, *(names[path] for path in there if path not in wanted)], there, wanted)
    _check_shapes(there, wanted)
    arrays = {path: _float32(names[path], array) for path, array in there.items()}
    if grey:
        arrays[_STEM] = arrays[_STEM].sum(axis=2, keepdims=True)
    return Imported(_nested(arrays), tuple(notes))


def _shapes(tree: Mapping[str, Any], above: Path = ()) -> Shapes:
    """The shape of each leaf of nested mappings, by its path."""
    shapes: Shapes = {}
    for name, value in tree.items():
        path = (*above, name)
        shapes |= _shapes(value, path) if isinstance(value, Mapping) else {path: value.shape}
    return shapes


def _nested(arrays: Arrays) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, array in arrays.items():
        inner = tree
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = array
    return tree


def _arranged(tensor: NDArray[Any]) -> NDArray[Any]:
    """A view with the axes in Flax's order: OIHW to HWIO, (outputs, inputs) turned round."""
    return tensor.transpose(2, 3, 1, 0) if tensor.ndim == 4 else tensor.T


def _float32(name: str, array: NDArray[Any]) -> NDArray[np.float32]:
    """A copy of its own, float32 and finite."""
    if array.dtype.kind != "f":
        raise UsageError(f"tensor {shown(name)} is {array.dtype}; weights must be floats")
    with np.errstate(over="ignore"):
        copy = np.array(array, np.float32, order="C")
    if not np.isfinite(copy).all():
        raise UsageError(f"tensor {shown(name)} holds a NaN or an infinity; choose other weights")
    return copy


def _check_architecture(there: Arrays, wanted: Shapes) -> None:
    for theirs, ours in zip(_architecture(there), _architecture(wanted), strict=True):
        if theirs != ours:
            raise UsageError(
                f"is {theirs[0]}, but the model is {ours[0]}; set {theirs[1]}, or choose other "
                "weights"
            )


def _architecture(paths: Collection[Path]) -> list[tuple[str, str]]:
    """What a ResNet is, as its variables show: in words, and as what sets it."""
    blocks = {
        name: int(match[1]) for path in paths for name in path if (match := _BLOCK.match(name))
    }
    stages = list(blocks.values())
    sizes = [stages.count(stage) for stage in sorted(set(stages))]
    bottleneck = any("conv3" in path for path in paths)
    kind, convolutions = ("bottleneck", 3) if bottleneck else ("basic", 2)
    name = f"resnet{2 + convolutions * sum(sizes)}"
    norm = "batch" if any("batch_stats" in path for path in paths) else "group"
    return [
        (f"a {name} ({kind} blocks: {', '.join(map(str, sizes))})", f"model.name={name}"),
        (f"a network with {norm} normalisation", f"model.resnet.norm={norm}"),
    ]


def _other_head(there: Arrays, wanted: Shapes) -> str | None:
    """What to say of a head that is not the model's; None if the file has that."""
    classes = wanted[_HEAD_BIAS][0]
    if not any(path in there for path in _HEAD):
        return f"the file has no head; the one for {classes} classes is new"
    if not all(path in there for path in _HEAD):
        return None
    kernel, bias = (there[path].shape for path in _HEAD)
    whole = kernel == (wanted[_HEAD_KERNEL][0], *bias) and len(bias) == 1
    if not whole or bias == (classes,):
        return None
    return f"the file's head for {bias[0]} classes is replaced by a new one for {classes}"


def _check_places(homeless: list[str], there: Arrays, wanted: Shapes) -> None:
    """Refuses tensors without a place, whose names are given, and variables without a tensor."""
    missing = ["/".join(path) for path in wanted if path not in there]
    complaints = [
        f"{what}: {shown(*names)}"
        for what, names in (
            ("tensors without a place in it", homeless),
            ("variables without a tensor", missing),
        )
        if names
    ]
    if complaints:
        raise UsageError(
            f"does not fit the model: {'; '.join(complaints)}; choose weights of a plain ResNet of "
            "torchvision, timm or Hugging Face"
        )


def _check_shapes(there: Arrays, wanted: Shapes) -> None:
    # What tells most comes first.
    for path in sorted(wanted, key=lambda path: (path != _STEM, path[-1] != "kernel")):
        theirs, ours = there[path].shape, wanted[path]
        if theirs != ours:
            raise UsageError(
                f"does not fit the model: {'/'.join(path)} is {theirs} in the file, "
                f"but {ours} in the model; {_cure(path, theirs, ours)}"
            )


def _cure(path: Path, theirs: tuple[int, ...], ours: tuple[int, ...]) -> str:
    """What may make a shape fit."""
    if path == _STEM and len(theirs) == 4:
        if theirs[:2] != ours[:2] and theirs[0] in _STEM_SIDES:
            return f"set model.resnet.stem={_STEM_SIDES[theirs[0]]}"
        if theirs[2] != ours[2]:
            return f"set data.channels={theirs[2]}"
        return "set model.resnet.width so that they are the same"
    return "choose weights of a plain ResNet"
