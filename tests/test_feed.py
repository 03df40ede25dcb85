import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import IMAGE_SHAPE, data_mesh, split

from jaxtrain import data
from jaxtrain.config.schema import DataConfig
from jaxtrain.data import RawSplit, sizes
from jaxtrain.errors import DataError
from jaxtrain.feed import AUTO_RESIDENT_BYTES, Feed, is_resident

TRAIN = split(21, name="train")


class Files(RawSplit):
    """The images of TRAIN, decoded one by one; one of them may be bad."""

    name, size, labels, channels = "train", TRAIN.size, TRAIN.labels, IMAGE_SHAPE[2]
    image_shape, origin = IMAGE_SHAPE, "here"

    def __init__(self, bad=None):
        self.bad = bad

    def identities(self):
        raise NotImplementedError

    def decode(self, index, enough=None):
        if index == self.bad:
            raise DataError("a.png: cut short")
        return TRAIN.images[index]

    @functools.cached_property
    def fingerprint(self):
        return "12345678"


def sized(raw, **keys):
    return sizes.for_training(raw, sizes.sizing(DataConfig(**keys)))


def mesh(devices=1):
    return data_mesh(jax.devices()[:devices])


def seen(examples, cache, batches, devices=1):
    """The batches that a compiled step sees."""
    feed = Feed(examples, DataConfig(cache=cache), mesh(devices))

    def step(state, batch):
        return state + 1, batch

    rows = len(batches[0])
    update = feed.compile(step, jax.ShapeDtypeStruct((), jnp.int32), rows)
    return [
        jax.device_get(update(jnp.int32(0), batch, False).result[1])
        for batch in feed.batches(batches)
    ]


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("cache", ["device", "memory"])
def test_the_step_sees_the_examples(cache, devices):
    indices = data.eval_indices(TRAIN.size, 8)
    for batch, each in zip(seen(sized(Files()), cache, indices, devices), indices, strict=True):
        real = each >= 0
        assert np.array_equal(batch.mask, real)
        assert np.array_equal(batch.image[real], TRAIN.images[each[real]])
        assert np.array_equal(batch.label[real], TRAIN.labels[each[real]])
        assert np.array_equal(batch.row, np.arange(8))


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("cache", ["device", "memory"])
def test_the_step_sees_features_as_float32(cache, devices):
    features = np.random.RandomState(0).normal(size=(21, 3)) * [1, 1e6, 1e-6]
    examples = data.ArraySplit("train", features, TRAIN.labels, "here")
    indices = data.eval_indices(21, 8)
    for batch, each in zip(seen(examples, cache, indices, devices), indices, strict=True):
        assert batch.image.dtype == np.float32
        real = each >= 0
        assert np.array_equal(batch.image[real], features[each[real]].astype(np.float32))
        assert np.array_equal(batch.label[real], TRAIN.labels[each[real]])


def test_what_is_random_to_read_is_never_on_the_device():
    random = sized(Files(), crop="random_resized")
    part = data.Subset("part", random, np.arange(5))
    for cache in ("auto", "memory", "device"):
        assert not is_resident(random, cache, mesh())
        assert not is_resident(part, cache, mesh())
    batches = data.Sampler(TRAIN.size, 8, 1).batches(6)
    found = seen(random, "auto", batches)
    again = seen(random, "auto", batches)
    for item, (one, other) in enumerate(zip(found, again, strict=True)):
        assert np.array_equal(one.image, other.image)
        assert np.array_equal(one.image, random.read(batches[item], batches.row_seeds(item)))


def test_auto_is_what_is_small_for_all_devices_together():
    class Large(data.ArraySplit):
        def __init__(self, nbytes):
            super().__init__("train", np.zeros((1, *IMAGE_SHAPE), np.uint8), TRAIN.labels, "here")
            self.nbytes = nbytes

    assert is_resident(Large(AUTO_RESIDENT_BYTES), "auto", mesh())
    assert not is_resident(Large(AUTO_RESIDENT_BYTES + 1), "auto", mesh())
    assert not is_resident(Large(AUTO_RESIDENT_BYTES), "auto", mesh(2))
    assert is_resident(Large(AUTO_RESIDENT_BYTES + 1), "device", mesh())
    assert not is_resident(Large(1), "memory", mesh())


def test_a_bad_image_is_found_before_the_first_step():
    """If all are read at once; else where its batch comes."""
    feed = Feed(sized(Files(bad=13)), DataConfig(), mesh())
    step = functools.partial(feed.compile, lambda state, batch: (state, batch.row))
    state = jax.ShapeDtypeStruct((), jnp.int32)
    with pytest.raises(DataError, match=r"example 13 of split train: a\.png: cut short"):
        step(state, 8)
    config = DataConfig(cache="memory")
    batches = Feed(sized(Files(bad=13)), config, mesh()).batches(data.eval_indices(TRAIN.size, 8))
    assert next(batches).row.tolist() == list(range(8))
    with pytest.raises(DataError, match="batch 2 of split train cannot be read: example 13"):
        next(batches)
