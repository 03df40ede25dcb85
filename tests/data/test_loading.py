import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrain.config.schema import DataConfig
from jaxtrain.data import ArraySplit, RawSplit, Sampler, eval_indices, load, sizes
from jaxtrain.errors import DataError

SIZE = 30
IMAGES = np.random.RandomState(0).randint(0, 256, (SIZE, 3, 2, 1)).astype(np.uint8)
LABELS = (np.arange(SIZE) % 7 + 1).astype(np.int32)
SPLIT = ArraySplit("train", IMAGES, LABELS, "here")


class Watched(ArraySplit):
    """Counts reads, and calls `before` with the indices of each."""

    def __init__(self, before=lambda indices: None):
        super().__init__("train", IMAGES, LABELS, "here")
        self.reads = 0
        self.before = before

    def read(self, indices, row_seeds=None):
        self.reads += 1
        self.before(indices)
        return super().read(indices)


def expect(batch, indices, rows=None):
    row = np.arange(len(indices))[slice(None) if rows is None else rows]
    indices = np.asarray(indices)[row]
    real = indices >= 0
    assert [field.dtype.name for field in batch] == ["uint8", "int32", "bool", "int32"]
    assert np.array_equal(batch.mask, real)
    assert np.array_equal(batch.row, row)
    assert batch.image.shape == (len(row), 3, 2, 1)
    assert np.array_equal(batch.image[real], IMAGES[indices[real]])
    assert np.array_equal(batch.label[real], LABELS[indices[real]])
    assert not batch.image[~real].any()
    assert not batch.label[~real].any()


@settings(deadline=None, max_examples=40)
@given(
    batch=st.integers(1, SIZE),
    steps=st.integers(1, 20),
    threads=st.integers(1, 5),
    ahead=st.integers(1, 9),
    data=st.data(),
)
def test_training_batches_equal_direct_indexing(batch, steps, threads, ahead, data):
    sampler = Sampler(SIZE, batch, 3)
    start = data.draw(st.integers(0, steps))
    loaded = list(load(SPLIT, sampler.batches(steps), start=start, threads=threads, ahead=ahead))
    assert len(loaded) == steps - start
    for step, got in enumerate(loaded, start + 1):
        expect(got, sampler.indices(step))
        assert got.mask.all()


@settings(deadline=None, max_examples=40)
@given(batch=st.integers(1, 2 * SIZE), threads=st.integers(1, 5), data=st.data())
def test_evaluation_batches_are_padded_with_masked_rows(batch, threads, data):
    indices = eval_indices(SIZE, batch)
    rows = data.draw(
        st.sampled_from(
            [None, slice(None), slice(batch // 2, None), slice(1, None, 2), np.arange(batch)[::-1]]
        )
    )
    loaded = list(load(SPLIT, indices, threads=threads, ahead=4, rows=rows))
    assert len(loaded) == len(indices)
    for got, each in zip(loaded, indices, strict=True):
        expect(got, each, rows)
    if rows is None:
        assert sum(int(got.mask.sum()) for got in loaded) == SIZE


def test_slow_reads_do_not_change_the_order():
    split = Watched(lambda indices: time.sleep(0.02 if indices[0] % 3 == 0 else 0))
    indices = eval_indices(SIZE, 1)
    for got, each in zip(load(split, indices, threads=3, ahead=6), indices, strict=True):
        expect(got, each)


def test_reads_ahead_and_no_further():
    split = Watched()
    batches = load(split, eval_indices(SIZE, 1), threads=2, ahead=4)
    next(batches)
    until(lambda: split.reads >= 5)
    time.sleep(0.05)
    # Each thread may hold one batch more, for which there is no room yet.
    assert split.reads <= 1 + 4 + 2
    assert len(list(batches)) == SIZE - 1
    assert split.reads == SIZE


class Seeded(ArraySplit):
    """Shows each row's seed as its image, zeros where there is none."""

    random = True

    def __init__(self):
        super().__init__("train", np.zeros((SIZE, 8, 1, 1), np.uint8), LABELS, "here")

    def read(self, indices, row_seeds=None):
        if row_seeds is None:
            return super().read(indices)
        assert row_seeds.shape == indices.shape
        return row_seeds.astype("<u8").view(np.uint8).reshape(-1, 8, 1, 1)


def seeds_in(batch):
    return batch.image.ravel().view("<u8").tolist()


@settings(deadline=None, max_examples=30)
@given(batch=st.integers(1, SIZE), threads=st.integers(1, 4), data=st.data())
def test_rows_are_read_with_their_own_seeds(batch, threads, data):
    """Whatever the threads, the start, and the part of the batch that a process reads."""
    sampler = Sampler(SIZE, batch, 3)
    start = data.draw(st.integers(0, 5))
    rows = data.draw(st.sampled_from([None, slice(batch // 2), np.arange(batch)[::-2]]))
    options = {"start": start, "threads": threads, "ahead": 4, "rows": rows}
    loaded = list(load(Seeded(), sampler.batches(6), **options))
    for step, got in enumerate(loaded, start + 1):
        wanted = sampler.row_seeds(step)[slice(None) if rows is None else rows]
        assert seeds_in(got) == wanted.tolist()
    assert len(loaded) == 6 - start


def test_evaluation_has_no_row_seeds():
    loaded = load(Seeded(), eval_indices(SIZE, 8), threads=2, ahead=4)
    assert not any(any(seeds_in(batch)) for batch in loaded)


def test_a_bad_image_is_named_with_its_batch_and_its_place():
    class Files(RawSplit):
        name, size, labels, channels, image_shape, origin = "train", SIZE, LABELS, 1, None, "here"
        fingerprint = "0"

        def identities(self):
            raise NotImplementedError

        def decode(self, index, enough=None):
            if index == 13:
                raise DataError("/data/b.png: cut short")
            return IMAGES[index]

    for crop in ("center", "random_resized"):
        sizing = sizes.sizing(DataConfig(image_size=(3,), crop=crop))
        split = sizes.for_training(Files(), sizing)
        batches = Sampler(SIZE, 5, 3).batches(6)
        at = next(item for item in range(6) if 13 in batches[item])
        loaded = load(split, batches, threads=2, ahead=4)
        for _ in range(at):
            next(loaded)
        with pytest.raises(DataError) as caught:
            next(loaded)
        assert str(caught.value) == (
            f"batch {at + 1} of split train cannot be read: example 13 of split train: "
            "/data/b.png: cut short"
        )


def until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def fail_at(index, error):
    def before(indices):
        if index in indices:
            raise error

    return before


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize(
    "error", [OSError("disk on fire"), StopIteration(), None], ids=["OSError", "StopIteration", ""]
)
def test_a_failed_read_is_raised_at_its_step_and_not_skipped(threads, error):
    raised = error or DataError("shard 3: cut short")
    said = "shard 3: cut short" if error is None else repr(error)
    split = Watched(fail_at(13, raised))
    batches = load(split, eval_indices(SIZE, 2), start=2, threads=threads, ahead=4)
    for item in range(2, 6):
        expect(next(batches), [2 * item, 2 * item + 1])
    with pytest.raises(DataError) as caught:
        next(batches)
    assert str(caught.value) == f"batch 7 of split train cannot be read: {said}"
    assert caught.value.__cause__ is raised
    assert caught.value.status == 3
    with pytest.raises(StopIteration):
        next(batches)


@pytest.mark.parametrize("ending", ["exhausted", "closed", "dropped", "failed"])
def test_threads_end_with_the_iterator(ending):
    before = set(threading.enumerate())
    split = Watched(fail_at(9, OSError()) if ending == "failed" else lambda indices: None)
    batches = load(split, eval_indices(SIZE, 1), threads=3, ahead=6)
    next(batches)
    if ending == "exhausted":
        list(batches)
    elif ending == "failed":
        with pytest.raises(DataError):
            list(batches)
    elif ending == "closed":
        batches.close()
    del batches
    until(lambda: set(threading.enumerate()) <= before)


STUCK = """
import sys, threading
import numpy as np
from jaxtrain.data import ArraySplit, eval_indices, load

class Stuck(ArraySplit):
    def read(self, indices, row_seeds=None):
        if 6 in indices:
            threading.Event().wait()
        return super().read(indices)

split = Stuck("train", np.zeros((9, 1, 1, 1), np.uint8), np.zeros(9, np.int32), "here")
batches = load(split, eval_indices(9, 1), threads=2, ahead=2)
for _ in range(6):
    next(batches)
if sys.argv[1] == "closed":
    batches.close()
if sys.argv[1] == "dropped":
    del batches
print("end")
"""


@pytest.mark.parametrize("ending", ["closed", "dropped", "kept"])
def test_a_read_that_hangs_does_not_keep_the_process(ending):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", STUCK, ending],
        env=environment, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "end\n"
    assert done.stderr == ""
