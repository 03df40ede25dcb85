"""Layouts of arrays: as JAX has them, and drawn for a terminal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxtrain.check.layout import draw, layout, most_split, shape_text, split_text
from jaxtrain.parallel.mesh import abstract_mesh, build_mesh, over_rows


def laid(mesh, shape, spec, name="w"):
    leaf = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
    return layout(name, leaf, mesh)


@pytest.mark.parametrize("text", ["data=4,model=2", "data=2,fsdp=2,model=2", "fsdp=8", "data=8"])
@pytest.mark.parametrize(
    "spec", [P(), P("fsdp"), P(None, "model"), P(("model", "data"), "fsdp"), P(("data", "fsdp"))]
)
def test_the_devices_of_each_part_are_those_that_jax_puts_it_on(text, spec):
    mesh = build_mesh(text, jax.devices())
    shape = (16, 24)
    one = laid(mesh, shape, spec)
    held = NamedSharding(mesh, spec).devices_indices_map(shape)
    numbered = np.arange(16 * 24).reshape(shape)
    parts = [numbered[index] for index in held.values()]
    assert {part.shape for part in parts} == {one.part}
    assert one.bytes_each == parts[0].size * 4
    # Parts in the order of their first element are rows of columns.
    firsts = sorted({part[0, 0] for part in parts})
    expected = [
        tuple(d.id for d, part in zip(held, parts, strict=True) if part[0, 0] == first)
        for first in firsts
    ]
    assert [devices for row in one.devices for devices in row] == expected
    assert one.parts == len(expected)
    pretended = laid(abstract_mesh(text, 8), shape, spec)
    assert pretended == one


def test_one_with_columns():
    one = laid(abstract_mesh("data=4,model=2", 8), (784, 10000), P(None, "model"))
    assert (split_text(one.split), shape_text(one.part)) == ("-,model", "784x5000")
    assert draw(one) == [
        "     0-4999     5000-9999",
        " ┌────────────┬────────────┐",
        " │ 0, 2, 4, 6 │ 1, 3, 5, 7 │",
        " └────────────┴────────────┘",
    ]


def test_one_with_rows():
    mesh = abstract_mesh("data=4,model=2", 8)
    one = laid(mesh, (64, 28, 28, 1), over_rows(mesh).spec)
    assert (split_text(one.split), shape_text(one.part)) == ("data,-,-,-", "16x28x28x1")
    assert draw(one) == [
        "      ┌─────┐",
        " 0-15 │ 0-1 │",
        "16-31 │ 2-3 │",
        "32-47 │ 4-5 │",
        "48-63 │ 6-7 │",
        "      └─────┘",
    ]


def test_many_parts_are_shortened():
    one = laid(
        abstract_mesh("data=2,fsdp=32,model=4", 256), (3, 3, 64, 8), P(None, None, "fsdp", "model")
    )
    lines = draw(one)
    assert lines[0].split() == ["0-1", "2-3", "4-5", "6-7"]
    rows = [[text.strip() for text in line.split("│")] for line in lines[2::2]]
    assert rows[0] == ["0-1", "0, 128", "1, 129", "2, 130", "3, 131", ""]
    assert rows[-2] == ["…"] * 5 + [""]
    assert rows[-1] == ["62-63", "124, 252", "125, 253", "126, 254", "127, 255", ""]
    many = laid(abstract_mesh("data=64,model=4", 256), (8, 8), P(None, "model"))
    assert " 0, 4, …, 252 │ 1, 5, …, 253 " in draw(many)[2]


def test_an_axis_of_one_device_splits_nothing():
    one = laid(abstract_mesh("data=8", 8), (16, 8), P("fsdp", "model"))
    assert (one.parts, one.part, split_text(one.split)) == (1, (16, 8), "replicated")
    number = laid(abstract_mesh("data=8", 8), (), P())
    assert (number.parts, shape_text(number.shape), draw(number)[1]) == (1, "1", " │ 0-7 │")


def test_the_most_split_one_is_the_largest_of_those_with_the_most_parts():
    mesh = abstract_mesh("fsdp=4,model=2", 8)
    found = most_split(
        [
            laid(mesh, (800, 800), P("fsdp"), "large"),
            laid(mesh, (8,), P(("fsdp", "model")), "small"),
            laid(mesh, (8, 8), P("fsdp", "model"), "both"),
        ]
    )
    assert found.name == "both"


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.tuples(*[st.sampled_from([1, 2, 3, 8, 16, 64])] * 3),
    dimensions=st.lists(st.sampled_from([1, 2, 5]), min_size=1, max_size=4),
    where=st.lists(st.integers(0, 3), min_size=3, max_size=3),
)
@example(sizes=(8, 3, 2), dimensions=[1], where=[1, 0, 1])
@example(sizes=(64, 3, 64), dimensions=[5, 5, 5], where=[3, 2, 3])
@example(sizes=(64, 64, 64), dimensions=[5, 5], where=[3, 1, 0])
def test_a_drawing_fits_and_every_device_has_its_part(sizes, dimensions, where):
    axes = ("data", "fsdp", "model")
    mesh = abstract_mesh(
        ",".join(f"{a}={n}" for a, n in zip(axes, sizes, strict=True)), int(np.prod(sizes))
    )
    split = [[] for _ in dimensions]
    for axis, dimension in zip(axes, where, strict=True):
        if dimension < len(split):
            split[dimension].append(axis)
    shape = tuple(
        size * int(np.prod([mesh.shape[axis] for axis in of]))
        for size, of in zip(dimensions, split, strict=True)
    )
    one = laid(mesh, shape, P(*(tuple(of) or None for of in split)))
    held = [device for row in one.devices for devices in row for device in devices]
    assert sorted(held) == list(range(mesh.size))
    assert len({len(devices) for row in one.devices for devices in row}) == 1
    lines = draw(one)
    assert max(map(len, lines)) <= 68
    assert len(lines) <= 18
    boxes = [line for line in lines if "│" in line]
    assert len({line.count("│") for line in boxes}) == 1
    assert len({line.rindex("│") for line in boxes}) == 1
