"""Where the weights of a new run come from, if not from its seed alone: `model.init_from`."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxtrain import checkpoint, files, pretrained, rules, state, stored
from jaxtrain.errors import CheckpointError, UsageError
from jaxtrain.files import AnyPath
from jaxtrain.parallel.mesh import AnyMesh, build_mesh, on_mesh
from jaxtrain.pretrained import Imported

_CHECKPOINTS = "checkpoints"


def load(init_from: str, abstract: dict[str, Any], mesh: AnyMesh) -> Imported:
    """Weights for a model from another run, or from a file of PyTorch's.

    Args:
        init_from: a run's folder, whose last checkpoint counts (the average of its weights, if
            there is one); the folder of one checkpoint; or a file, see `pretrained.load`.
        abstract: parameters and collections of the model, as of `state.abstract_model`.
        mesh: the devices; abstract ones if the model is only checked.

    Returns:
        All variables, or all but those of the head if that is for another number of classes.

    Raises:
        UsageError: there are none, or they do not fit the model.
    """
    path = files.place(init_from)
    with files.explained(path):
        is_folder = path.is_dir()
    if not is_folder:
        return pretrained.load(path, abstract)
    try:
        directory, step = _checkpoint(path)
        found = stored.describe(directory, step)
        here = mesh if isinstance(mesh, Mesh) else build_mesh("data=-1", jax.local_devices()[:1])
        item = found.item(on_mesh(found.abstract, here))
        weights = state.weights(checkpoint.restore_model(directory, step, item), None)
    except CheckpointError as error:
        raise UsageError(f"model.init_from={init_from}: {error}") from error
    return _fitted(init_from, jax.device_get(weights), abstract)


def _checkpoint(path: AnyPath) -> tuple[AnyPath, int]:
    """The folder of checkpoints, and the step, that a folder stands for."""
    if checkpoint.is_step_name(path.name):
        return path.parent, checkpoint.resolve_step(path.parent, path.name)
    directory = path / _CHECKPOINTS
    if not directory.is_dir():
        raise UsageError(
            f"model.init_from={path} is neither a run's folder nor that of a checkpoint; name one, "
            "or a .safetensors or .pth file"
        )
    return directory, checkpoint.resolve_step(directory, "last")


def _fitted(init_from: str, weights: Any, abstract: dict[str, Any]) -> Imported:
    """Weights of the same names and shapes; a head of another shape is left out."""
    there, wanted = _by_name(weights), _by_name(abstract)
    heads = [name for name in wanted if rules.in_head(name.partition("/")[2])]
    notes: tuple[str, ...] = ()
    if any(name not in there or there[name].shape != wanted[name].shape for name in heads):
        notes = (f"the head of {init_from} is replaced by a new one",)
        there = {name: leaf for name, leaf in there.items() if not _is_head(name)}
        wanted = {name: leaf for name, leaf in wanted.items() if name not in heads}
    for name in [*wanted, *there]:
        theirs, ours = (tree[name].shape if name in tree else "nothing" for tree in (there, wanted))
        if theirs != ours:
            raise UsageError(
                f"model.init_from={init_from} does not fit the model: {name} is {theirs} there, "
                f"but {ours} here; use the model that it was trained with, or other weights"
            )
    return Imported(_nested(there), notes)


def _is_head(name: str) -> bool:
    return rules.in_head(name.partition("/")[2])


def _by_name(tree: Any) -> dict[str, Any]:
    """Leaves by their path, which begins with `params` or `collections`."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def _nested(leaves: dict[str, np.ndarray]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *above, last = name.split("/")
        inner = tree
        for part in above:
            inner = inner.setdefault(part, {})
        inner[last] = leaf
    return tree
