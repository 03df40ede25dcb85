import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from formats.sources import images, reference, source

from jaxtrain.errors import UsageError
from jaxtrain.formats import Options, savedmodel
from jaxtrain.formats.lowering import apply_by_name, by_name

MODEL = source("mlp", (6, 5, 3))


def with_unused_work(model):
    """The model by a module that makes initial values, as those do that come from NNX."""

    def apply(variables, image):
        values = jax.random.truncated_normal(jax.random.key(0), -2, 2, (64,))
        assert values.shape == (64,)
        return model.apply(variables, image)

    return dataclasses.replace(model, apply=apply)


def with_erf(model):
    def apply(variables, image):
        return jax.lax.erf(model.apply(variables, image))

    return dataclasses.replace(model, apply=apply)


def test_what_no_logit_needs_is_left_out():
    model = with_unused_work(MODEL)
    image = images(model.image_shape, 2)
    whole = str(jax.make_jaxpr(model.apply)(model.variables, image))
    assert "erf_inv" in whole
    apply = apply_by_name(model)
    program = str(jax.make_jaxpr(apply)(by_name(model.variables), image))
    assert "erf_inv" not in program
    assert "random" not in program
    found = apply(by_name(model.variables), jnp.asarray(image))
    np.testing.assert_allclose(found, reference(model, image), atol=1e-5)


def test_what_is_unused_does_not_keep_tensorflow_from_running_it(tmp_path):
    model = with_unused_work(MODEL)
    savedmodel.save(model, tmp_path, Options())
    image = images(model.image_shape, 3)
    found = savedmodel.load(tmp_path, "logits")(image)
    np.testing.assert_allclose(found, reference(model, image), atol=1e-5)


def test_an_operation_that_tensorflow_does_not_know_is_said(tmp_path, capfd):
    with pytest.raises(UsageError, match=r"TensorFlow cannot run an operation .*erf.*; export it"):
        savedmodel.save(with_erf(MODEL), tmp_path, Options())
    assert capfd.readouterr().err == ""
