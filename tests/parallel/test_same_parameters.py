"""The parameters after some steps are those of one device, however several share the work.

With all that a step draws or sums: augmentation, dropout, stochastic depth, batch statistics and
accumulated gradients.
"""

import jax
import numpy as np
import pytest
from steps import MOMENTUM, fixed, new_state, trained

from jaxtrain.parallel.mesh import build_mesh

STEPS = 3
OPTIONS = {"name": "convolving", "accumulate": 2, "updates": MOMENTUM}


@pytest.mark.parametrize(
    ("mode", "mesh", "rules"),
    [
        ("pmap", "data=8", "replicated"),
        ("jit", "data=8", "replicated"),
        ("jit", "data=2,fsdp=4", "fsdp"),
        ("jit", "data=4,model=2", "tensor"),
    ],
)
def test_the_parameters_are_those_of_one_device(mode, mesh, rules):
    """To a few units in the last digit of 1, where each has come at least a hundredth."""
    alone, _ = trained(1, "device", STEPS, **OPTIONS)
    spread, _ = trained(8, "device", STEPS, mode=mode, mesh=mesh, rules=rules, **OPTIONS)
    begin = new_state(build_mesh("data=1", jax.devices()[:1]), fixed(**OPTIONS))
    for first, one, other in zip(
        *(jax.tree.leaves(state.params) for state in (begin, alone, spread)), strict=True
    ):
        assert np.abs(one - first).max() > 0.01
        np.testing.assert_allclose(other, one, rtol=0, atol=3e-7)
    for one, other in zip(
        *(jax.tree.leaves((state.collections, state.opt_state)) for state in (alone, spread)),
        strict=True,
    ):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=2e-6)
