import jax.numpy as jnp
import numpy as np

from jaxtrain.augment.draws import normal, symmetric, uniform
from jaxtrain.keys import step_key

KEY = step_key(3, 7, "augment")
ROWS = jnp.arange(64, dtype=jnp.int32)


def test_draws_never_change():
    """Changed draws would make every older run impossible to resume or to repeat."""
    found = np.asarray(uniform(KEY, ROWS[:2], 3)) * 2**24
    assert found.tolist() == [[2383148, 1595496, 5638406], [3240225, 15154382, 8103553]]


def test_uniform_and_symmetric_fill_their_ranges_evenly():
    drawn = np.asarray(uniform(KEY, ROWS, 2048))
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts, _ = np.histogram(drawn, 16, (0, 1))
    expected = drawn.size / 16
    assert ((counts - expected) ** 2 / expected).sum() < 37.7  # chi-squared, 15 degrees, 0.1 %
    np.testing.assert_array_equal(symmetric(KEY, ROWS, 2048), 2 * drawn - 1)


def test_normal_has_the_moments_of_the_normal_distribution():
    drawn = np.asarray(normal(KEY, ROWS, 4096)).astype(np.float64)
    error = drawn.size**-0.5
    for power, moment, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert abs((drawn**power).mean() - moment) < 4 * error * variance**0.5
    assert abs(drawn).max() < 5.4
    assert abs((abs(drawn) < 1).mean() - 0.6827) < 4 * error
