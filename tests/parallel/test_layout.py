import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P
from steps import close, leaves_equal, new_state, trained

from jaxtrain.errors import UsageError
from jaxtrain.parallel.layout import parameter_shardings
from jaxtrain.parallel.mesh import abstract_mesh, build_mesh, bytes_per_device, with_shardings

PARAMS = {
    "hidden_0": {"kernel": (784, 12), "bias": (12,)},
    "head": {"kernel": (12, 10), "bias": (10,)},
}


def abstract(shapes=PARAMS):
    return jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32),
        shapes,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def specs(text, mesh, shapes=PARAMS):
    made = parameter_shardings(text, abstract(shapes), mesh)
    return [tuple(sharding.spec) for sharding in jax.tree.leaves(made)]


# In the order of jax.tree.leaves: head bias and kernel, then hidden_0's.
@pytest.mark.parametrize(
    ("mesh", "text", "expected"),
    [
        ("data=8", "replicated", [(), (), (), ()]),
        ("fsdp=4,data=2", "fsdp", [(), ("fsdp",), ("fsdp",), ("fsdp",)]),
        ("fsdp=2,data=4", "fsdp", [("fsdp",), ("fsdp",), ("fsdp",), ("fsdp",)]),
        ("data=4,model=2", "tensor", [("model",), (None, "model"), ("model",), (None, "model")]),
        ("data=2,model=4", "tensor", [(), (), ("model",), (None, "model")]),
        (
            "data=2,fsdp=2,model=2",
            "hidden_0/kernel=fsdp,model; head/kernel=model+fsdp,-; .*=replicated",
            [(), (("model", "fsdp"), None), (), ("fsdp", "model")],
        ),
        ("data=8", "kernel=-,-;.*=fsdp", [("fsdp",), (None, None), ("fsdp",), (None, None)]),
        ("data=8", "(kernel|bias)=replicated", [(), (), (), ()]),
    ],
)
def test_specs(mesh, text, expected):
    plain = [
        tuple(entry[0] if isinstance(entry, tuple) and len(entry) == 1 else entry for entry in spec)
        for spec in specs(text, abstract_mesh(mesh, 8))
    ]
    assert plain == expected


@pytest.mark.parametrize("shape", [(6, 8, 8), (8, 8), (8, 3)])
def test_fsdp_takes_the_largest_dimension_that_divides(shape):
    (spec,) = specs("fsdp", abstract_mesh("fsdp=8", 8), {"w": shape})
    assert spec == (None,) * max(i for i, size in enumerate(shape) if size == 8) + ("fsdp",)


@pytest.mark.parametrize(
    ("mesh", "text", "said"),
    [
        ("data=8", "sharded", "must be one of replicated, fsdp, tensor, or rules"),
        ("data=8", "kernels=fsdp; .*=replicated", "'kernels' matches no parameter"),
        (
            "data=8",
            "kernel=fsdp",
            "no rule matches parameter 'head/bias'; end with '.*=replicated'",
        ),
        ("data=8", "kernel=-,tensr; .*=replicated", "'-,tensr' of 'kernel' must be one of"),
        ("data=8", "kernel=model,model; .*=replicated", "each at most once"),
        ("data=8", "kernel=; .*=replicated", "'' of 'kernel' must be one of"),
        ("data=8", "kernel=model; .*=replicated", "has 1 entries, but 'head/kernel' has 2"),
        ("data=1,model=8", "kernel=-,model; .*=replicated", "splits 10 of 'head/kernel'"),
        ("data=4,model=2", "replicated", "set parallel.rules=tensor"),
        ("data=4,fsdp=2", "kernel=replicated; .*=replicated", "set parallel.rules=fsdp"),
        ("data=1,model=8", "kernel=replicated; .*=fsdp", "the axis model 8 devices"),
        ("data=1,model=8", "tensor", "take fewer, or take the axis data"),
        ("data=8", "fsdp", "splits nothing: the mesh has one device along fsdp"),
        ("data=2,fsdp=4", "tensor", "splits nothing: the mesh has one device along model"),
    ],
)
def test_bad_rules_are_named(mesh, text, said):
    with pytest.raises(UsageError, match=r"^parallel\.") as caught:
        specs(text, abstract_mesh(mesh, 8))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_device_holds_its_part():
    params = abstract()

    def held(rules, mesh):
        lies = parameter_shardings(rules, params, abstract_mesh(mesh, 8))
        return bytes_per_device(with_shardings(params, lies))

    assert held("replicated", "data=8") == 4 * (784 * 12 + 12 + 120 + 10)
    assert held("tensor", "data=4,model=2") * 2 == held("replicated", "data=8")


@pytest.mark.parametrize(
    ("mesh", "rules"),
    [
        ("data=2,fsdp=4", "fsdp"),
        ("data=4,model=2", "tensor"),
        ("data=2,fsdp=2,model=2", "hidden_0/kernel=fsdp,model; .*=replicated"),
    ],
)
def test_a_layout_changes_nothing_but_the_last_digits(mesh, rules):
    alone, history = trained(1, "device", 8)
    spread, others = trained(8, "device", 8, mesh=mesh, rules=rules)
    close(alone, spread)
    close(history, others)
    devices = jax.devices()
    leaves_equal(
        *(
            jax.device_get(new_state(build_mesh(text, of), rules=rule))
            for text, of, rule in ((mesh, devices, rules), ("data=1", devices[:1], "replicated"))
        )
    )


@pytest.mark.parametrize(("mesh", "rules"), [("fsdp=8", "fsdp"), ("data=4,model=2", "tensor")])
def test_batch_statistics_and_parts_are_the_same_under_a_layout(mesh, rules):
    options = {"name": "convolving", "operations": "flip"}
    alone, history = trained(1, "device", 3, accumulate=2, **options)
    spread, others = trained(8, "device", 3, accumulate=2, mesh=mesh, rules=rules, **options)
    close(alone.collections, spread.collections, rtol=1e-3, atol=1e-4)
    close([m.interval.loss for m in history], [m.interval.loss for m in others], rtol=1e-3)


def test_the_optimizer_lies_as_its_parameters():
    state = new_state(build_mesh("data=2,fsdp=4", jax.devices()), rules="fsdp")
    kernel = state.params["hidden_0"]["kernel"].sharding
    assert kernel.spec == P(None, "fsdp")  # its 30 inputs do not divide
    moments = [
        leaf.sharding
        for path, leaf in jax.tree.leaves_with_path(state.opt_state)
        if jax.tree_util.keystr(path).endswith("['hidden_0']['kernel']")
    ]
    assert moments == [kernel, kernel]
    assert state.step.sharding.is_fully_replicated
