"""Names of a PyTorch ResNet's tensors to the variables of `models.resnet`.

A variable is named by its path in `TrainState.model`, such as
`("params", "stage1_block0", "conv1", "kernel")`.
"""

import re
from collections.abc import Callable, Collection

from jaxtrain.errors import UsageError
from jaxtrain.pretrained.words import shown

Path = tuple[str, ...]

# What a layer of each kind calls its tensors, and what they are here; None: not needed.
# BatchNorm counts its batches for a mode of its running averages that no ResNet uses.
_LEAVES: dict[str, dict[str, Path | None]] = {
    "conv": {"weight": ("params", "kernel")},
    "norm": {
        "weight": ("params", "scale"),
        "bias": ("params", "bias"),
        "running_mean": ("collections", "batch_stats", "mean"),
        "running_var": ("collections", "batch_stats", "var"),
        "num_batches_tracked": None,
    },
    "head": {"weight": ("params", "kernel"), "bias": ("params", "bias")},
}

_NUMBER = "(0|[1-9][0-9]{0,3})"
_TORCHVISION_LAYER = re.compile(rf"layer{_NUMBER}\.{_NUMBER}\.(conv|bn|downsample\.){_NUMBER}")
_HUGGINGFACE_LAYER = re.compile(
    rf"encoder\.stages\.{_NUMBER}\.layers\.{_NUMBER}\."
    rf"(?:layer\.{_NUMBER}|shortcut)\.(convolution|normalization)"
)

Layer = tuple[str, Path]  # its kind, a key of `_LEAVES`, and its path


def places(names: Collection[str]) -> tuple[dict[Path, str], list[str]]:
    """Where each tensor of a file belongs.

    Args:
        names: of all its tensors, as torchvision, timm or Hugging Face give them to a ResNet.

    Returns:
        The names by the path of their variable, and those that have none. Counts of batches,
        which are not needed, are in neither.

    Raises:
        UsageError: these are no names of a ResNet of the three.
    """
    layer = _reader(names)
    found: dict[Path, str] = {}
    unknown = []
    for name in names:
        module, _, leaf = name.rpartition(".")
        kind, path = layer(module) or ("", ())
        if leaf not in _LEAVES.get(kind, {}):
            unknown.append(name)
            continue
        variable = _LEAVES[kind][leaf]
        if variable is not None:
            found[(*variable[:-1], *path, variable[-1])] = name
    return found, unknown


def _reader(names: Collection[str]) -> Callable[[str], Layer | None]:
    """What knows the layers of the family whose first convolution is among the names."""
    for stem, reader in _FAMILIES.items():
        if f"{stem}.weight" in names:
            return reader
    raise UsageError(
        f"names its tensors {shown(*names)}, which no ResNet of torchvision, timm or Hugging Face "
        "does; only their ResNets are read"
    )


def _torchvision(module: str) -> Layer | None:
    """A ResNet of torchvision or timm."""
    edges = {"conv1": _STEM_CONV, "bn1": _STEM_NORM, "fc": _HEAD}
    if module in edges:
        return edges[module]
    match = _TORCHVISION_LAYER.fullmatch(module)
    if match is None:
        return None
    stage, block, word, number = match.groups()
    path = f"stage{stage}_block{block}"
    if word == "downsample.":
        shortcuts = {"0": ("conv", (path, "shortcut_conv")), "1": ("norm", (path, "shortcut_norm"))}
        return shortcuts.get(number)
    kind = "conv" if word == "conv" else "norm"
    return kind, (path, f"{kind}{number}")


def _huggingface(module: str) -> Layer | None:
    """A ResNet with a classifier."""
    if module == "classifier.1":
        return _HEAD
    return _huggingface_backbone(module[7:]) if module.startswith("resnet.") else None


def _huggingface_backbone(module: str) -> Layer | None:
    """A ResNet without one."""
    edges = {
        "embedder.embedder.convolution": _STEM_CONV,
        "embedder.embedder.normalization": _STEM_NORM,
    }
    if module in edges:
        return edges[module]
    match = _HUGGINGFACE_LAYER.fullmatch(module)
    if match is None:
        return None
    stage, block, number, word = match.groups()
    kind = "conv" if word == "convolution" else "norm"
    layer = f"shortcut_{kind}" if number is None else f"{kind}{int(number) + 1}"
    return kind, (f"stage{int(stage) + 1}_block{block}", layer)


_STEM_CONV: Layer = ("conv", ("stem_conv",))
_STEM_NORM: Layer = ("norm", ("stem_norm",))
_HEAD: Layer = ("head", ("head",))
_FAMILIES: dict[str, Callable[[str], Layer | None]] = {
    "conv1": _torchvision,
    "resnet.embedder.embedder.convolution": _huggingface,
    "embedder.embedder.convolution": _huggingface_backbone,
}
