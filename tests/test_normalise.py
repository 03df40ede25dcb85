import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.config.schema import DataConfig
from jaxtrain.data import Statistics
from jaxtrain.errors import UsageError
from jaxtrain.normalise import Normalise, normalisation


def test_normalise_maps_bytes_to_the_unit_interval():
    found = Normalise((0.0,), (1.0,))(jnp.array([0, 51, 255], jnp.uint8).reshape(1, 1, 3, 1))
    np.testing.assert_allclose(found.ravel(), [0, 0.2, 1], rtol=1e-6)
    assert Normalise((0.0,), (1.0,))(jnp.full((1, 1, 1, 1), 3.5)).item() == 3.5


def test_normalise_takes_one_number_or_one_a_channel():
    pixel = jnp.array([0, 51, 255], jnp.uint8).reshape(1, 1, 1, 3)
    config = DataConfig(mean=(0.1, 0.2, 0.3), std=(0.5,))
    found = normalisation(config, (1, 1, 3), unknown)(pixel)
    np.testing.assert_allclose(found.ravel(), [-0.2, 0, 1.4], rtol=1e-6, atol=1e-7)
    with pytest.raises(UsageError, match=r"holds 3 numbers, but images have 1"):
        normalisation(config, (1, 1, 1), unknown)


def unknown():
    raise AssertionError("statistics are not needed")


def test_features_stay_as_they_are_unless_the_config_says_otherwise():
    features = jnp.array([[300.0, -1.0]])
    assert normalisation(DataConfig(), (2,), unknown)(features).tolist() == [[300.0, -1.0]]
    config = DataConfig(mean=(100.0, 1.0), std=(2.0,))
    assert normalisation(config, (2,), unknown)(features).tolist() == [[100.0, -1.0]]
    with pytest.raises(UsageError, match=r"holds 2 numbers, but examples have 3 features; give "):
        normalisation(config, (3,), unknown)


def test_standardised_features_have_the_statistics_of_the_training_examples():
    config = DataConfig(standardize=True)
    found = normalisation(config, (2,), lambda: Statistics((100.0, -1.0), (50.0, 1.0)))
    assert found(jnp.array([[300.0, -1.0]])).tolist() == [[4.0, 0.0]]
    with pytest.raises(UsageError, match="is for features, but the examples are images of 1x1x3"):
        normalisation(config, (1, 1, 3), unknown)
    with pytest.raises(UsageError, match=r"takes the place of data\.mean=\(1\.0,\) and data\.std"):
        normalisation(DataConfig(standardize=True, mean=(1.0,)), (2,), unknown)
