import jax
import numpy as np

from jaxtrain import keys


def bits(key: jax.Array) -> tuple[int, ...]:
    return tuple(np.asarray(jax.random.key_data(key)).ravel().tolist())


def test_seed_step_and_purpose_each_make_another_key():
    made = {
        bits(keys.step_key(seed, step, purpose))
        for seed in (0, 1, 2**32 - 1)
        for step in (0, 1, 2)
        for purpose in ("init", "dropout")
    }
    assert len(made) == 18


def test_keys_never_change():
    """A changed stream would make every older run impossible to resume or to repeat."""
    assert bits(keys.step_key(3, 7, "dropout")) == (741380745, 1910307013)


def test_row_keys_depend_on_the_row_alone():
    key = keys.step_key(0, 1, "dropout")
    whole = jax.random.key_data(keys.row_keys(key, np.arange(8)))
    part = jax.random.key_data(keys.row_keys(key, np.array([5, 2])))
    np.testing.assert_array_equal(part, whole[np.array([5, 2])])
