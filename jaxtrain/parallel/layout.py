"""How parameters lie on the mesh: `parallel.rules`."""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jaxtrain import rules
from jaxtrain.errors import LayoutError
from jaxtrain.parallel.mesh import AXES, AnyMesh

_KEY = "parallel.rules"
_EXAMPLE = "kernel=-,model; .*=replicated"

# One entry a dimension: the mesh axes that split it, none for `-`.
_Dimensions = tuple[tuple[str, ...], ...]
# A parameter's shape, its name and the mesh, to how its dimensions are split.
_Rule = Callable[[tuple[int, ...], str, AnyMesh], PartitionSpec]


def _replicated(shape: tuple[int, ...], name: str, mesh: AnyMesh) -> PartitionSpec:
    return PartitionSpec()


def _fsdp(shape: tuple[int, ...], name: str, mesh: AnyMesh) -> PartitionSpec:
    """The largest dimension that divides; the last of equals."""
    sizes = [size if size % mesh.shape["fsdp"] == 0 else 0 for size in shape]
    if not any(sizes):
        return PartitionSpec()
    largest = max(range(len(sizes)), key=lambda dimension: (sizes[dimension], dimension))
    return PartitionSpec(*[None] * largest, "fsdp")


def _tensor(shape: tuple[int, ...], name: str, mesh: AnyMesh) -> PartitionSpec:
    """The last dimension, a layer's outputs or channels, where it divides."""
    if not shape or shape[-1] % mesh.shape["model"]:
        return PartitionSpec()
    return PartitionSpec(*[None] * (len(shape) - 1), "model")


READY_MADE: dict[str, _Rule] = {"replicated": _replicated, "fsdp": _fsdp, "tensor": _tensor}
_AXIS_OF = {"fsdp": "fsdp", "tensor": "model"}


def parameter_shardings(text: str, params: Any, mesh: AnyMesh) -> Any:
    """How each parameter lies on the mesh.

    `replicated` keeps a copy on every device, `fsdp` splits the largest dimension that divides
    over the axis `fsdp`, `tensor` the last dimension over `model` where it divides. Rules by name,
    `PATTERN=VALUE; ...`, take these words or one entry a dimension: an axis, several joined
    with `+`, or `-`, as in `hidden_0/kernel=-,model; hidden_1/kernel=model,-; .*=replicated`.

    Args:
        text: `parallel.rules`.
        params: the parameters, abstract or not.
        mesh: the devices.

    Returns:
        A tree like `params` of `NamedSharding`.

    Raises:
        LayoutError: bad rules, a rule that matches no parameter or does not fit one that it
            matches, a ready-made rule for an axis of one of several devices, or a mesh axis of
            several devices that nothing is split over.
    """
    names = rules.parameter_names(params)
    if "=" in text:
        by_name = rules.resolve(
            rules.parse(text, _KEY, _read_rule, _EXAMPLE), names, _KEY, "replicated"
        )
    elif text in READY_MADE:
        by_name = dict.fromkeys(names, READY_MADE[text])
    else:
        raise LayoutError(
            f"{_KEY}={text!r} must be one of {', '.join(READY_MADE)}, or rules by parameter name, "
            f"as in {_EXAMPLE!r}"
        )
    leaves, structure = jax.tree.flatten(params)
    specs = [
        by_name[name](leaf.shape, name, mesh) for name, leaf in zip(names, leaves, strict=True)
    ]
    _refuse_idle_rule(text, mesh)
    _refuse_unused(text, specs, mesh)
    return jax.tree.unflatten(structure, [NamedSharding(mesh, spec) for spec in specs])


def _refuse_idle_rule(text: str, mesh: AnyMesh) -> None:
    """Refuses a ready-made rule for an axis that is not there, where there are several devices."""
    axis = _AXIS_OF.get(text)
    if axis is not None and mesh.size > 1 and mesh.shape[axis] == 1:
        raise LayoutError(
            f"{_KEY}={text!r} splits nothing: the mesh has one device along {axis}; set "
            f"parallel.mesh={axis}=-1, or as in data=-1,{axis}=2"
        )


def _refuse_unused(text: str, specs: list[PartitionSpec], mesh: AnyMesh) -> None:
    """Refuses devices along an axis that would all do the same."""
    used = {"data"} | {axis for spec in specs for entry in spec for axis in axes_of(entry)}
    for ready, axis in _AXIS_OF.items():
        if mesh.shape[axis] > 1 and axis not in used:
            fix = "take fewer" if text == ready else f"set {_KEY}={ready}"
            raise LayoutError(
                f"parallel.mesh gives the axis {axis} {mesh.shape[axis]} devices, but no parameter "
                f"can be split over them with {_KEY}={text!r}; {fix}, or take the axis data"
            )


def axes_of(entry: Any) -> tuple[str, ...]:
    """The mesh axes in one entry of a `PartitionSpec`."""
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def _read_rule(value: str, pattern: str) -> _Rule:
    if value in READY_MADE:
        return READY_MADE[value]
    dimensions: _Dimensions = tuple(
        () if part.strip() == "-" else tuple(axis.strip() for axis in part.split("+"))
        for part in value.split(",")
    )
    axes = [axis for dimension in dimensions for axis in dimension]
    if len(set(axes)) < len(axes) or not set(axes) <= set(AXES):
        raise LayoutError(
            f"{_KEY}: {value!r} of {pattern!r} must be one of {', '.join(READY_MADE)}, or one "
            f"entry a dimension: one of the axes {', '.join(AXES)}, each at most once, or -, as in "
            "-,model"
        )

    def split(shape: tuple[int, ...], name: str, mesh: AnyMesh) -> PartitionSpec:
        if len(dimensions) != len(shape):
            raise LayoutError(
                f"{_KEY}: {value!r} of {pattern!r} has {len(dimensions)} entries, but {name!r} has "
                f"{len(shape)} dimensions {shape}; give one for each"
            )
        for size, dimension in zip(shape, dimensions, strict=True):
            parts = math.prod(mesh.shape[axis] for axis in dimension)
            if size % parts:
                raise LayoutError(
                    f"{_KEY}: {value!r} of {pattern!r} splits {size} of {name!r} {shape} over "
                    f"{parts} devices, which does not divide; change the mesh or the rule"
                )
        return PartitionSpec(*(dimension or None for dimension in dimensions))

    return split
