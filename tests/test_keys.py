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
        for purpose in ("init", "dropout", "augment")
    }
    assert len(made) == 27


def test_keys_never_change():
    """A changed stream would make every older run impossible to resume or to repeat."""
    assert bits(keys.step_key(3, 7, "dropout")) == (741380745, 1910307013)


def test_row_keys_depend_on_the_row_alone():
    key = keys.step_key(0, 1, "dropout")
    whole = jax.random.key_data(keys.row_keys(key, np.arange(8)))
    part = jax.random.key_data(keys.row_keys(key, np.array([5, 2])))
    np.testing.assert_array_equal(part, whole[np.array([5, 2])])


def row_bits(step: int, rows: int = 64, size: int = 512) -> np.ndarray:
    key = keys.step_key(0, step, "dropout")
    return np.asarray(keys.row_bits(key, np.arange(rows, dtype=np.int32), size))


def test_row_bits_never_change():
    """A changed mask would make every older run impossible to resume or to repeat."""
    assert row_bits(1, 2, 3).tolist() == [
        [2204315150, 1858650391, 1229980206],
        [1901201392, 725813532, 2688511198],
    ]


def test_row_bits_depend_on_the_row_alone():
    key = keys.step_key(0, 1, "dropout")
    part = keys.row_bits(key, np.array([5, 2], np.int32), 512)
    np.testing.assert_array_equal(part, row_bits(1)[[5, 2]])


def test_row_bits_are_fair_coins():
    """Each of the 32 bits, at each position, in each row and at each step."""
    coins = np.unpackbits(
        np.stack([row_bits(step) for step in range(64)]).view(np.uint8), axis=-1
    ).reshape(64, 64, 512, 32)
    for axis in range(4):
        others = tuple(other for other in range(4) if other != axis)
        count = coins.size // coins.shape[axis]
        deviations = (coins.mean(others) - 0.5) * 2 * np.sqrt(count)
        assert abs(deviations).max() < 5


def test_row_bits_do_not_agree_with_their_neighbours():
    """Nor do positions, rows and steps a power of two apart."""
    units = np.stack([row_bits(step) for step in range(64)]) / 2**32 - 0.5
    for axis in range(3):
        for distance in (1, 2, 4, 8, 16, 32):
            ahead = np.roll(units, -distance, axis)
            correlation = 12 * (units * ahead).mean() * np.sqrt(units.size)
            assert abs(correlation) < 5
