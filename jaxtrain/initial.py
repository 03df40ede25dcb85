"""Where the weights of a new run come from, if not from its seed alone: `model.init_from`."""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxtrain import checkpoint, files, pretrained, rules, state, stored
from jaxtrain.errors import CheckpointError, UsageError
from jaxtrain.files import AnyPath
from jaxtrain.normalise import Normalise
from jaxtrain.parallel.mesh import AnyMesh, build_mesh, on_mesh
from jaxtrain.pretrained import Imported
from jaxtrain.replicas import select
from jaxtrain.stored import StoredModel

_CHECKPOINTS = "checkpoints"

# Of more, the numbers are not shown.
_SHOWN_CHANNELS = 4


class Given:
    """The weights of `model.init_from`, which lie in memory only while a new run needs them.

    Args:
        load: reads them.
    """

    def __init__(self, load: Callable[[], Imported]):
        self._load = load
        self._loaded: Imported | None = None

    def check(self) -> tuple[str, ...]:
        """Reads them, unless they are there.

        Returns:
            What a person should know of them, a line each.

        Raises:
            UsageError: there are none, or they do not fit the model.
        """
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded.notes

    def take(self) -> dict[str, Any]:
        """The variables, which are kept here no longer.

        Raises:
            UsageError: as for `check`.
        """
        loaded, self._loaded = self._loaded or self._load(), None
        return loaded.variables


def load(
    init_from: str,
    abstract: dict[str, Any],
    mesh: AnyMesh,
    class_names: tuple[str, ...],
    normalise: Normalise,
) -> Imported:
    """Weights for a model from another run, or from a file of PyTorch's.

    Args:
        init_from: a run's folder, whose last checkpoint counts (the average of its weights, if
            there is one); the folder of one checkpoint; or a file, see `pretrained.load`.
        abstract: parameters and collections of the model, as of `state.abstract_model`.
        mesh: the devices; abstract ones if the model is only checked.
        class_names: of the model, in label order.
        normalise: what the model sees of an example.

    Returns:
        All variables, or all but those of the head if that is for another number of classes; and
        notes where the other run's classes or normalisation differ.

    Raises:
        UsageError: there are none, or they do not fit the model.
    """
    path = files.place(init_from)
    here = mesh if isinstance(mesh, Mesh) else build_mesh("data=-1", jax.local_devices()[:1])
    try:
        with files.explained(path):
            if not path.is_dir():
                return pretrained.load(path, abstract)
        found, weights = checkpoint.read_located(
            functools.partial(_locate, path), functools.partial(_read, mesh=here)
        )
    except PermissionError as error:
        raise UsageError(
            f"model.init_from={init_from} cannot be read: {error.strerror}; make it readable"
        ) from error
    except CheckpointError as error:
        raise UsageError(f"model.init_from={init_from}: {error}") from error
    fitted = _fitted(init_from, weights, abstract)
    notes = [*fitted.notes]
    if not notes:
        notes += _other_classes(init_from, found.class_names, class_names)
    notes += _other_numbers(init_from, found.normalise, normalise)
    return Imported(fitted.variables, tuple(notes))


def _locate(path: AnyPath) -> tuple[AnyPath, int]:
    """The folder of checkpoints, and the step, that a folder stands for."""
    with files.explained(path):
        if checkpoint.is_step_name(path.name):
            return path.parent, checkpoint.resolve_step(path.parent, path.name)
        directory = path / _CHECKPOINTS
        if not directory.is_dir():
            raise UsageError(
                f"model.init_from={path} is neither a run's folder nor that of a checkpoint; name "
                "one, or a .safetensors or .pth file"
            )
        return directory, checkpoint.resolve_step(directory, "last")


def _read(directory: AnyPath, step: int, mesh: Mesh) -> tuple[StoredModel, Any]:
    """What a step says of its model, and the weights, on the host."""
    found = stored.describe(directory, step)
    item = found.item(on_mesh(found.abstract, mesh))
    weights = jax.device_get(state.weights(checkpoint.restore_model(directory, step, item), None))
    return found, weights if found.count == 1 else select(weights, found.number(None))


def _other_classes(init_from: str, theirs: tuple[str, ...], ours: tuple[str, ...]) -> Iterator[str]:
    """A note where a head is kept that tells other classes."""
    for label, (there, here) in enumerate(itertools.zip_longest(theirs, ours)):
        if there != here:
            yield (
                f"the head of {init_from} is kept, but its classes are others: {label} is "
                f"{there!r} there, {here!r} here"
            )
            return


def _other_numbers(init_from: str, theirs: Normalise, ours: Normalise) -> Iterator[str]:
    """A note where the model would see an example in other numbers."""
    channels = max(len(theirs.mean), len(theirs.std), len(ours.mean), len(ours.std))

    def each(values: tuple[float, ...]) -> tuple[float, ...]:
        return values * channels if len(values) == 1 else values

    pairs = ((theirs.mean, ours.mean), (theirs.std, ours.std))
    for name, (there, here) in zip(("mean", "std"), pairs, strict=True):
        if each(there) != each(here):
            said = f": {there} there, {here} here" if channels <= _SHOWN_CHANNELS else ""
            yield f"{init_from} was trained with another {name} of examples{said}"


def _fitted(init_from: str, weights: Any, abstract: dict[str, Any]) -> Imported:
    """Weights of the same names and shapes; a head of another shape is left out."""
    there, wanted = _by_name(weights), _by_name(abstract)
    notes: tuple[str, ...] = ()
    heads = [name for name in wanted if _is_head(name)]
    if any(name not in there or there[name].shape != wanted[name].shape for name in heads):
        notes = (f"the head of {init_from} is replaced by a new one",)
        there, wanted = (
            {name: leaf for name, leaf in tree.items() if not _is_head(name)}
            for tree in (there, wanted)
        )
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
