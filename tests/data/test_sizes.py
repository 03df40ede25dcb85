import functools
import re
from concurrent import futures

import numpy as np
import pytest

from jaxtrain.config.schema import DataConfig
from jaxtrain.data import ArraySplit, RawSplit, Subset, bits, crops, silent, sizes
from jaxtrain.data.cache import Cache, choice
from jaxtrain.data.split import Identity
from jaxtrain.errors import DataError, UsageError

SHAPES = [(9, 14), (20, 7), (12, 12), (1, 1), (1, 40)]
RANDOM = "random_resized(0.2, 0.9)"


class Pictures(RawSplit):
    """Random images in memory, one for each shape; counts what is decoded."""

    def __init__(self, shapes=SHAPES, channels=3, seed=0):
        random = np.random.RandomState(seed)
        self.pictures = [
            random.randint(0, 256, (*shape, channels)).astype(np.uint8) for shape in shapes
        ]
        self.name = "train"
        self.size = len(shapes)
        self.labels = (np.arange(self.size) % 3).astype(np.int32)
        self.channels = channels
        self.image_shape = (*shapes[0], channels) if len(set(shapes)) == 1 else None
        self.origin = "here"
        self.decoded = []
        self.asked = []

    def identities(self):
        return [Identity(b"%d" % index, b"") for index in range(self.size)]

    def decode(self, index, enough=None):
        self.asked.append(enough)
        self.decoded.append(index)
        picture = self.pictures[index]
        if isinstance(picture, Exception):
            raise picture
        return picture

    @functools.cached_property
    def fingerprint(self):
        return "12345678"


SAME = [(9, 14)] * 5


def sized(opened, *, train=False, **keys):
    sizing = sizes.sizing(DataConfig(**keys))
    return (sizes.for_training if train else sizes.for_evaluation)(opened, sizing)


def seeds(count, step=1):
    return bits.words(bits.key(7, step), count)


def refusal(**keys):
    with pytest.raises(UsageError) as error:
        sizes.sizing(DataConfig(**keys))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def no_room(monkeypatch):
    monkeypatch.setattr(choice, "memory_limit", lambda: 0)


def test_the_config_is_parsed():
    assert sizes.sizing(DataConfig()) == sizes.Sizing(
        None, None, crops.Center(), 1.0, Cache("auto", None)
    )
    config = DataConfig(image_size=(8,), crop="random_resized(0.08,1.0)", eval_crop=0.875)
    expected = sizes.Sizing(
        (8, 8), (8, 8), crops.RandomResized(0.08, 1.0), 0.875, Cache("auto", None)
    )
    assert sizes.sizing(config) == expected
    config = DataConfig(
        image_size=(8, 6), eval_image_size=(9,), crop="random_resized(0.5, ratio=(1, 1))"
    )
    expected = sizes.Sizing(
        (8, 6), (9, 9), crops.RandomResized(0.5, 1.0, (1.0, 1.0)), 1.0, Cache("auto", None)
    )
    assert sizes.sizing(config) == expected


def test_what_the_config_may_not_say():
    assert "data.crop='centre' is unknown" in refusal(crop="centre")
    assert "did you mean 'center'" in refusal(crop="centre")
    said = refusal(crop="center|random_resized")
    assert "holds 2 crops; write one, center or random_resized" in said
    assert "holds 0 crops" in refusal(crop=" ")
    said = refusal(crop="random_resized(1, 0.5)")
    assert said == (
        "data.crop: random_resized(1, 0.5): the areas must be above 0, at most 1 and in order"
    )


def test_nothing_to_do():
    split = ArraySplit("train", np.zeros((3, 4, 5, 1), np.uint8), np.zeros(3, np.int32), "here")
    for keys in ({}, {"image_size": (4, 5)}):
        assert sized(split, **keys) is split
        assert sized(split, train=True, **keys) is split
    assert sized(split, image_size=(4,)).image_shape == (4, 4, 1)
    assert sized(split, eval_crop=0.9).image_shape == (4, 5, 1)


def test_sizes_that_vary_need_a_size():
    raw = Pictures()
    for train, crop in ((False, "center"), (True, "center"), (True, RANDOM)):
        with pytest.raises(UsageError) as error:
            sized(raw, train=train, crop=crop)
        assert str(error.value) == (
            "the images of split train vary in size (here); set data.image_size to the side, or "
            "height,width, that they are to be brought to"
        )
    assert raw.decoded == []


@pytest.mark.parametrize("train", [False, True])
def test_every_image_is_the_centre_crop(train):
    raw = Pictures()
    split = sized(raw, train=train, image_size=(10, 8), eval_crop=0.8)
    assert (split.name, split.size, split.origin) == ("train", 5, "here")
    assert split.image_shape == (10, 8, 3)
    assert split.nbytes == 5 * 10 * 8 * 3
    assert split.labels is raw.labels
    assert not split.random
    expected = np.stack([crops.center(each, (10, 8), 0.8) for each in raw.pictures])
    assert np.array_equal(split.read(np.array([4, 4, 0])), expected[[4, 4, 0]])
    assert np.array_equal(split.images, expected)
    assert split.read(np.array([], np.int64)).shape == (0, 10, 8, 3)


def test_images_of_one_size_stay_as_they_are():
    raw = Pictures(SAME)
    assert np.array_equal(sized(raw).images, raw.pictures)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_an_array_is_resized_too(channels):
    raw = Pictures(SAME, channels)
    split = ArraySplit("train", np.stack(raw.pictures), raw.labels, "here")
    for keys in ({"image_size": (7,)}, {"eval_crop": 0.7}):
        assert np.array_equal(sized(split, **keys).images, sized(raw, **keys).images)
    keys = {"crop": RANDOM, "image_size": (6,), "train": True}
    where = np.array([3, 1])
    found = sized(split, **keys).read(where, seeds(2))
    assert np.array_equal(found, sized(raw, **keys).read(where, seeds(2)))


def test_what_fits_is_decoded_once_and_not_before_it_is_read():
    raw = Pictures()
    split = sized(raw, image_size=(8,))
    assert split.fingerprint
    assert raw.decoded == []
    split.read(np.array([3, 1]))
    split.read(np.array([1, 2, 3]))
    assert raw.decoded == [3, 1, 2]
    first = split.images
    assert sorted(raw.decoded) == [0, 1, 2, 3, 4]
    assert split.images is first
    split.read(np.arange(5))
    assert len(raw.decoded) == 5


def test_what_does_not_fit_is_decoded_again(no_room):
    raw = Pictures()
    split = sized(raw, image_size=(8,))
    expected = sized(Pictures(), image_size=(8,)).images
    assert np.array_equal(split.read(np.array([3, 1, 3])), expected[[3, 1, 3]])
    assert raw.decoded == [3, 1, 3]
    assert np.array_equal(split.images, expected)
    assert len(raw.decoded) == 8


@pytest.mark.parametrize(("room", "kept"), [(5, 5), (4.99, 4), (2, 2), (0.5, 0)])
@pytest.mark.parametrize("crop", ["center", RANDOM])
def test_as_many_images_are_kept_as_fit(monkeypatch, room, kept, crop):
    each = 8 * 8 * 3 if crop == "center" else 9 * 14 * 3
    monkeypatch.setattr(choice, "memory_limit", lambda: int(room * each))
    raw = Pictures(SAME)
    split = sized(raw, train=True, image_size=(8,), crop=crop)
    for step in (1, 2, 3):
        split.read(np.arange(5), seeds(5, step))
    assert len(raw.decoded) == 5 + 2 * (5 - kept)


def test_images_of_any_size_are_kept():
    raw = Pictures()
    split = sized(raw, train=True, crop=RANDOM, image_size=(8,))
    for step in (1, 2):
        split.read(np.arange(5), seeds(5, step))
    assert raw.decoded == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("crop", ["center", RANDOM])
@pytest.mark.parametrize("shapes", [SAME, SHAPES], ids=["same", "varied"])
def test_where_images_are_kept_changes_nothing(tmp_path, shapes, crop):
    keys = {"train": True, "crop": crop, "image_size": (8,), "cache_path": str(tmp_path)}
    first = None
    for kept in ("none", "memory", "disk", "auto"):
        raw = Pictures(shapes)
        split = sized(raw, cache=kept, **keys)
        split.prepare(silent)
        found = [split.read(np.arange(5), seeds(5, step)) for step in (1, 1, 2, 3)]
        first = found if first is None else first
        assert np.array_equal(found, first), kept
        assert len(raw.decoded) == {"none": 20, "disk": 10}.get(kept, 5) - (
            # What all images need is known where they have one shape.
            5 if kept == "disk" and (crop == "center" or shapes is SAME) else 0
        )
    assert np.array_equal(first[0], first[1])
    assert np.array_equal(first[1], first[2]) == (crop == "center")  # or the change is frozen


def test_only_what_is_read_is_prepared(tmp_path):
    raw = Pictures(SAME)
    whole = sized(raw, image_size=(8,), cache="disk", cache_path=str(tmp_path))
    some = Subset("some", whole, np.array([3, 1]))
    some.prepare(silent)
    assert sorted(raw.decoded) == [1, 3]
    assert np.array_equal(some.images, sized(Pictures(SAME), image_size=(8,)).images[[3, 1]])
    assert sorted(raw.decoded) == [1, 3]
    assert np.array_equal(whole.images, sized(Pictures(SAME), image_size=(8,)).images)


def test_arrays_are_not_written_to_the_disk(tmp_path):
    raw = Pictures(SAME)
    split = ArraySplit("train", np.stack(raw.pictures), raw.labels, "here")
    for crop in ("center", RANDOM):
        keys = {"image_size": (8,), "crop": crop, "train": True}
        found = sized(split, cache="disk", cache_path=str(tmp_path), **keys)
        found.prepare(silent)
        expected = sized(split, cache="none", **keys).read(np.arange(5), seeds(5))
        assert np.array_equal(found.read(np.arange(5), seeds(5)), expected)
    assert not list(tmp_path.iterdir())


def test_images_that_vary_may_come_reduced():
    raw = Pictures()
    sized(raw, image_size=(10, 6), eval_crop=0.5).read(np.arange(1))
    crop = "random_resized(0.25, 1.0, (1, 1))"
    sized(raw, train=True, image_size=(10, 6), crop=crop).read(np.arange(1), seeds(1))
    wide = "random_resized(0.5, 1.0, (0.25, 1))"
    sized(raw, train=True, image_size=(10, 6), crop=wide).read(np.arange(1), seeds(1))
    # Twice what it is resized to; what the smallest part, or twice what the mean one needs.
    assert raw.asked == [(40, 24), (33, 20), (30, 18)]
    raw = Pictures(SAME)
    sized(raw, image_size=(2,)).read(np.arange(1))
    assert raw.asked == [None]


@pytest.mark.parametrize("shapes", [SAME, SHAPES], ids=["same", "varied"])
def test_a_random_part_is_a_function_of_its_row_seed(shapes):
    raw = Pictures(shapes)
    split = sized(raw, train=True, crop=RANDOM, image_size=(10, 8))
    assert split.random
    where = np.array([2, 0, 2, 1, 4, 3])
    rows = seeds(6)
    found = split.read(where, rows)
    crop = crops.RandomResized(0.2, 0.9)
    for image, index, draws in zip(found, where, bits.uniform(rows, crops.DRAWS), strict=True):
        expected = crops.random_resized(raw.pictures[index], (10, 8), crop, draws.tolist())
        assert np.array_equal(image, expected)
    assert not np.array_equal(found[0], found[2])
    order = np.array([5, 2, 0])
    assert np.array_equal(split.read(where[order], rows[order]), found[order])
    assert not np.array_equal(split.read(where, seeds(6, step=2)), found)
    assert split.read(where[:0], rows[:0]).shape == (0, 10, 8, 3)


def test_a_random_part_needs_a_row_seed():
    split = sized(Pictures(SAME), train=True, crop=RANDOM)
    assert split.image_shape == (9, 14, 3)
    with pytest.raises(ValueError, match="without row seeds"):
        split.read(np.arange(2))
    with pytest.raises(ValueError, match="without row seeds"):
        _ = split.images


def test_evaluation_takes_the_centre_where_training_is_random():
    raw = Pictures()
    found = sized(raw, crop=RANDOM, image_size=(8,), eval_crop=0.9)
    assert np.array_equal(found.images, sized(raw, image_size=(8,), eval_crop=0.9).images)


@pytest.mark.parametrize("crop", ["center", RANDOM])
def test_threads_read_the_same(crop):
    raw = Pictures(SAME * 40)
    split = sized(raw, train=True, crop=crop, image_size=(8,))
    where = np.random.RandomState(0).permutation(200).reshape(20, 10)
    rows = seeds(200).reshape(20, 10)
    with futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(split.read, [*where, *where], [*rows, *rows]))
    again = sized(Pictures(SAME * 40), train=True, crop=crop, image_size=(8,))
    for images, each, seed in zip(found, [*where, *where], [*rows, *rows], strict=True):
        assert np.array_equal(images, again.read(each, seed))


def test_fingerprints_say_what_was_made_of_the_data(no_room):
    raw = Pictures(SAME)
    other = Pictures(SAME)
    vars(other)["fingerprint"] = "87654321"
    splits = [
        sized(raw),
        sized(other),
        sized(raw, image_size=(8,)),
        sized(raw, image_size=(8, 7)),
        sized(raw, image_size=(8,), eval_crop=0.9),
        sized(raw, train=True, image_size=(8,), crop=RANDOM),
        sized(raw, train=True, image_size=(8,), crop="random_resized(0.2, 0.8)"),
    ]
    prints = [split.fingerprint for split in splits]
    assert len(set(prints)) == len(prints)
    assert sized(Pictures(SAME), image_size=(8,)).fingerprint == prints[2]
    assert raw.decoded == []
    array = ArraySplit("train", np.stack(raw.pictures), raw.labels, "here")
    changed = ArraySplit("train", 255 - np.stack(raw.pictures), raw.labels, "here")
    assert sized(array, image_size=(8,)).fingerprint != sized(changed, image_size=(8,)).fingerprint


@pytest.mark.parametrize("keys", [{}, {"train": True, "crop": RANDOM}], ids=["center", "random"])
@pytest.mark.parametrize("room", [0, 10**9])
@pytest.mark.parametrize(
    ("picture", "said"),
    [
        (DataError("a.jpg: cut short"), "example 2 of split train: a.jpg: cut short"),
        (OSError("gone"), "example 2 of split train: OSError('gone')"),
        (
            np.zeros((1, 1, 3), np.uint8),
            "example 2 of split train is 1x1x3, but its source says 9x14x3; mend the example",
        ),
        (np.zeros((9, 14), np.uint8), "is 9x14, but its source says 9x14x3"),
        (np.zeros((9, 14, 1), np.uint8), "is 9x14x1, but its source says 9x14x3"),
    ],
)
def test_a_bad_image_is_named(monkeypatch, keys, room, picture, said):
    monkeypatch.setattr(choice, "memory_limit", lambda: room)
    raw = Pictures(SAME)
    raw.pictures[2] = picture
    split = sized(raw, image_size=(8,), **keys)
    good = np.array([0, 1, 3])
    split.read(good, seeds(3))
    for _ in range(2):
        with pytest.raises(DataError) as error:
            split.read(np.array([1, 2]), seeds(2))
        assert said in str(error.value)
    if not keys:
        with pytest.raises(DataError, match=re.escape(said)):
            _ = split.images


def test_channels_are_checked_where_sizes_vary():
    raw = Pictures()
    raw.pictures[1] = np.zeros((3, 4, 1), np.uint8)
    with pytest.raises(DataError, match=r"example 1 of split train is 3x4x1, .* says 3x4x3"):
        sized(raw, image_size=(8,)).read(np.array([1]))


@pytest.mark.parametrize("crop", ["center", RANDOM])
def test_evaluation_may_have_a_size_of_its_own(crop):
    raw = Pictures()
    keys = {"image_size": (6,), "eval_image_size": (9, 8), "crop": crop}
    assert sized(raw, train=True, **keys).image_shape == (6, 6, 3)
    found = sized(raw, **keys)
    assert np.array_equal(found.images, sized(raw, image_size=(9, 8)).images)
