import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrain.data import Sampler, eval_indices
from jaxtrain.data.sampler import Permutation, _Stream, holdout_rows
from jaxtrain.errors import UsageError

SETTINGS = settings(deadline=None, max_examples=60)

sizes = st.integers(1, 400)
seeds = st.integers(0, 2**32 - 1)


@st.composite
def size_and_batch(draw):
    size = draw(sizes)
    return size, draw(st.integers(1, size))


def test_golden_values():
    """The stream is pinned for ever: a seed of today is the same run on every later version."""
    sampler = Sampler(60000, 128, 0)
    assert sampler.indices(1)[:8].tolist() == [38764, 13932, 53358, 2472, 58755, 11299, 37014, 766]
    across = [22980, 9516, 23702, 13241, 1990, 21783, 25907, 18118, 53147, 14143, 14728, 36255]
    assert sampler.indices(469)[:100:9].tolist() == across
    late = [25569, 46623, 9762, 35356, 49717, 655, 24056, 39866]
    assert Sampler(60000, 128, 2**32 - 1).indices(10**15)[:8].tolist() == late
    assert Sampler(7, 3, 1).indices(2).tolist() == [0, 1, 2]
    assert Permutation(10, 1, 0, 0)(np.arange(10)).tolist() == [3, 9, 1, 2, 6, 8, 0, 7, 4, 5]
    assert holdout_rows(20, 5)[1].tolist() == [9, 10, 12, 13, 16]
    assert holdout_rows(60000, 5000)[1][:8].tolist() == [3, 28, 32, 62, 85, 87, 107, 122]


def reference_permutation(size, words, position):
    """The same permutation in plain Python integers."""
    word, golden = 2**64 - 1, 0x9E3779B97F4A7C15

    def mix(state):
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & word
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & word
        return state ^ (state >> 31)

    rows = math.ceil(math.sqrt(size))
    columns = math.ceil(size / rows)
    key = 0
    for each in words:
        key = mix(((key ^ each) + golden) & word)
    cell = position
    while True:
        left, right = divmod(cell, columns)
        for number in range(1, 17):
            round_key = mix((key + number * golden) & word)
            if number % 2:
                left = (left + mix((round_key + (right + 1) * golden) & word) % rows) % rows
            else:
                right = (right + mix((round_key + (left + 1) * golden) & word) % columns) % columns
        cell = left * columns + right
        if cell < size:
            return cell


@SETTINGS
@given(size=st.integers(1, 10**6), seed=seeds, epoch=st.integers(0, 2**40), data=st.data())
def test_permutation_is_its_definition_in_plain_integers(size, seed, epoch, data):
    position = data.draw(st.integers(0, size - 1))
    got = Permutation(size, 1, seed, epoch)(np.array([position]))
    assert got.dtype == np.int64
    assert got.tolist() == [reference_permutation(size, (1, seed, epoch), position)]


@SETTINGS
@given(size=sizes, batch=st.integers(1, 900), seed=seeds, first=st.integers(0, 10**12))
def test_each_example_once_an_epoch_for_any_size_and_batch(size, batch, seed, first):
    start = first * size
    stream = _Stream(size, seed)
    epochs = 2 if batch <= size else math.ceil(batch / size)
    reads = math.ceil(epochs * size / batch)
    whole = np.concatenate([stream.read(start + k * batch, batch) for k in range(reads)])
    for epoch in range(epochs):
        part = whole[epoch * size : (epoch + 1) * size]
        assert np.array_equal(np.sort(part), np.arange(size))


@SETTINGS
@given(size_and_batch(), seeds)
def test_batches_run_on_across_epochs(size_batch, seed):
    size, batch = size_batch
    sampler = Sampler(size, batch, seed)
    steps = math.ceil(3 * size / batch)
    whole = np.concatenate([sampler.indices(step) for step in range(1, steps + 1)])
    assert len(whole) == steps * batch
    for epoch in range(3):
        assert len(set(whole[epoch * size : (epoch + 1) * size].tolist())) == size


@SETTINGS
@given(size_and_batch(), seeds, st.integers(1, 10**18))
def test_any_step_at_once_equals_iterating(size_batch, seed, step):
    size, batch = size_batch
    walked = Sampler(size, batch, seed)
    for earlier in range(step, step + 3):
        walked.indices(earlier)
    at_once = Sampler(size, batch, seed).indices(step + 3)
    assert np.array_equal(walked.indices(step + 3), at_once)
    assert at_once.dtype == np.int64
    assert at_once.shape == (batch,)


@SETTINGS
@given(st.integers(50, 400), seeds, st.integers(0, 10**9))
def test_other_order_each_epoch_and_seed(size, seed, epoch):
    order = Permutation(size, 1, seed, epoch)(np.arange(size))
    for other in (
        Permutation(size, 1, seed, epoch + 1),
        Permutation(size, 1, (seed + 1) % 2**32, epoch),
        Permutation(size, 2, seed, epoch),
        Permutation(size, 1, epoch, seed) if epoch != seed else Permutation(size, 1),
    ):
        # Two random orders agree in one place on average.
        assert np.count_nonzero(order == other(np.arange(size))) < 15


def test_same_in_a_fresh_process():
    code = (
        "from jaxtrain.data import Sampler; "
        "print([Sampler(1000, 7, 3).indices(s).tolist() for s in (1, 143, 10**9)])"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    here = [Sampler(1000, 7, 3).indices(step).tolist() for step in (1, 143, 10**9)]
    assert done.stdout.strip() == str(here)


def deviations(counts, expected):
    """Chi-square of counts, as standard deviations from what chance gives."""
    freedom = counts.size - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("size", [3, 10, 50, 97, 256, 1000])
def test_orders_look_random(size):
    epochs = 2000
    orders = np.stack([Permutation(size, 1, 11, epoch)(np.arange(size)) for epoch in range(epochs)])

    where = np.zeros((size, size))
    np.add.at(where, (np.broadcast_to(np.arange(size), orders.shape), orders), 1)
    assert abs(deviations(where, epochs / size)) < 5

    # Neighbours in the order, and the columns and rows of the grid that the permutation works on.
    for lag in {1, 2, math.isqrt(size), math.isqrt(size) + 1} - {size, size + 1}:
        if lag < size:
            steps = ((orders[:, lag:] - orders[:, :-lag]) % size).ravel()
            counts = np.bincount(steps, minlength=size)[1:]
            assert abs(deviations(counts, steps.size / (size - 1))) < 5

    change = ((orders[1:] - orders[:-1]) % size).ravel()
    assert abs(deviations(np.bincount(change, minlength=size), change.size / size)) < 5


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_every_order_of_a_tiny_set_is_as_likely(size):
    orders = math.factorial(size)
    digits = size ** np.arange(size)
    codes = [int(Permutation(size, 1, 5, epoch)(np.arange(size)) @ digits) for epoch in range(6000)]
    _, counts = np.unique(codes, return_counts=True)
    assert len(counts) == orders
    assert abs(deviations(counts, 6000 / orders)) < 5


def test_consecutive_indices_of_mnist_are_uncorrelated():
    order = Permutation(60000, 1, 0, 0)(np.arange(60000)).astype(float)
    for lag in (1, 2, 128, 244, 245):
        assert abs(np.corrcoef(order[lag:], order[:-lag])[0, 1]) < 5 / math.sqrt(60000)
    assert abs(np.corrcoef(order, np.arange(60000))[0, 1]) < 5 / math.sqrt(60000)


def test_more_examples_than_32_bits_count():
    indices = Sampler(2**33 + 1, 64, 0).indices(10**9)
    assert len(set(indices.tolist())) == 64
    assert indices.max() > 2**32


@pytest.mark.parametrize(
    ("size", "batch", "said"),
    [
        (20, 128, "train.batch_size=128 is larger than the 20 training examples; set it to 20"),
        (0, 128, "the training split has 0 examples; train.batch_size=128 needs 128 or more"),
    ],
)
def test_fewer_examples_than_a_batch(size, batch, said):
    with pytest.raises(UsageError, match=said):
        Sampler(size, batch, 0)


def test_steps_count_from_1():
    with pytest.raises(ValueError, match="not 0"):
        Sampler(20, 4, 0).indices(0)


def test_batches_is_the_sequence_of_steps():
    sampler = Sampler(20, 6, 1)
    batches = sampler.batches(9)
    assert len(batches) == 9
    for step in range(1, 10):
        assert np.array_equal(batches[step - 1], sampler.indices(step))


def test_row_seeds_are_pinned_for_ever():
    first = Sampler(60000, 128, 0).row_seeds(1)
    assert first[:2].tolist() == [13695640187757108244, 7479948875352538823]
    assert first[127] == 6851637570682755925
    late = [4770052506822135903, 9318791143674233787, 4227275469944109771]
    assert Sampler(60000, 3, 2**32 - 1).row_seeds(10**15).tolist() == late


def test_row_seeds_depend_on_seed_step_and_row_alone():
    seeds = Sampler(100, 8, 5).row_seeds(3)
    assert seeds.dtype == np.uint64
    assert np.array_equal(Sampler(9999, 64, 5).row_seeds(3)[:8], seeds)
    assert np.array_equal(Sampler(100, 8, 5).batches(9).row_seeds(2), seeds)
    others = [Sampler(100, 8, seed).row_seeds(step) for seed in range(10) for step in range(1, 11)]
    assert len(np.unique(others)) == 800


@SETTINGS
@given(sizes, st.integers(1, 900))
def test_eval_indices_are_every_example_once_in_order(size, batch):
    batches = eval_indices(size, batch)
    assert batches.shape == (math.ceil(size / batch), batch)
    flat = batches.ravel()
    assert np.array_equal(flat[:size], np.arange(size))
    assert np.all(flat[size:] == -1)


@SETTINGS
@given(st.integers(2, 400), st.data())
def test_holdout_parts_the_examples_and_nests(size, data):
    count = data.draw(st.integers(1, size - 1))
    kept, held = holdout_rows(size, count)
    assert len(held) == count
    assert np.array_equal(np.sort(np.concatenate([kept, held])), np.arange(size))
    assert np.all(np.diff(kept) > 0)
    assert np.all(np.diff(held) > 0)
    smaller = holdout_rows(size, max(count // 2, 1))[1]
    assert set(smaller.tolist()) <= set(held.tolist())
