import numpy as np

from jaxtrain.data import bits


def test_words_are_those_of_splitmix64():
    """The published outputs of SplitMix64 with seed 1234567."""
    assert bits.words(np.array([1234567], np.uint64), 5).tolist() == [
        6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431,
        16408922859458223821,
    ]  # fmt: skip


def test_words_at_any_position_at_once():
    keys = bits.words(bits.key(1, 2), 3)
    whole = bits.words(keys[:, np.newaxis], 7)
    for position in (6, 0, 3):
        assert np.array_equal(bits.at(keys, np.array([position], np.uint64)), whole[:, position])


def test_keys_depend_on_every_number_and_its_place():
    keys = [bits.key(*each).item() for each in ((1, 2), (2, 1), (1,), (1, 2, 0), (1, 3), (0, 2))]
    assert len(set(keys)) == len(keys)
    assert bits.key(-1) == bits.key(2**64 - 1)


def test_uniform_numbers():
    numbers = bits.uniform(bits.words(bits.key(5), 1000), 40)
    assert numbers.shape == (1000, 40)
    assert numbers.dtype == np.float64
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = np.histogram(numbers, 100, (0, 1))[0]
    assert abs(((counts - 400) ** 2 / 400).sum() - 99) < 5 * np.sqrt(2 * 99)
    assert abs(np.corrcoef(numbers, rowvar=False) - np.eye(40)).max() < 5 / np.sqrt(1000)
