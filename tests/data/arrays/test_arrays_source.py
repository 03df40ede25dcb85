"""`data.source=arrays`, from files to splits and classes."""

import os
import zipfile
from concurrent import futures

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtrain.config.schema import DataConfig
from jaxtrain.data.arrays import ArraysSource
from jaxtrain.errors import UsageError


def rows(first, size):
    """Features that say their own number."""
    return np.arange(first, first + size, dtype=np.float64).reshape(-1, 1) * [1, -1]


def save(path, form, **arrays):
    """Writes an `.npz` or a folder, and returns its path as text."""
    if form == "folder":
        place = path / "arrays"
        place.mkdir()
        for name, array in arrays.items():
            np.save(place / f"{name}.npy", array)
    else:
        place = path / "arrays.npz"
        (np.savez_compressed if form == "packed" else np.savez)(place, **arrays)
    return str(place)


@pytest.fixture(params=["npz", "packed", "folder"])
def form(request):
    return request.param


def source(path, **keys):
    return ArraysSource(DataConfig(source="arrays", path=path, **keys))


def refused(path, name="train", **keys):
    with pytest.raises(UsageError) as raised:
        source(path, **keys).open(name)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_splits_of_features(tmp_path, form):
    labels = np.arange(9).reshape(-1, 1) % 3
    path = save(
        tmp_path, form, x_train=rows(0, 9), y_train=labels, X_test=rows(9, 3), Y_test=labels[:3]
    )
    opened = source(path)
    assert opened.split_names == ("train", "test")
    assert opened.class_names is None
    assert opened.notes == []
    train, test = opened.open("train"), opened.open("test")
    assert (train.name, train.image_shape, train.size) == ("train", (2,), 9)
    assert train.labels.tolist() == [0, 1, 2] * 3
    assert train.labels.dtype == np.int32
    assert np.array_equal(test.images, rows(9, 3))
    assert "y_train" in train.origin
    assert path in train.origin
    both = opened.open("test + train")
    assert both.images[:, 0].tolist() == [9, 10, 11, *range(9)]
    assert both.name == "test + train"
    assert refused(path, "val") == (
        f"there is no split 'val' in {path}; its splits: train (9 examples), test (3 examples), "
        "and some of them together as in train+val"
    )


def test_splits_of_images_are_not_copied(tmp_path):
    images = np.arange(7 * 4 * 5 * 3, dtype=np.uint32).astype(np.uint8).reshape(7, 4, 5, 3)
    path = save(tmp_path, "folder", images=images, labels=np.arange(7) % 2, DESCR=np.array("?"))
    opened = source(path, val_share=0.3)
    cut = "no splits were found: about 0.3 of each class is the split val"
    assert opened.notes == ["not used: DESCR", cut]
    whole = opened.open("train+val")
    assert np.array_equal(whole.images, images)
    mapped = whole.images
    while not isinstance(mapped, np.memmap):
        mapped = mapped.base
    assert not mapped.flags.writeable


@given(
    size=st.integers(4, 300),
    classes=st.integers(1, 4),
    share=st.floats(0.05, 0.6),
    names=st.sampled_from([("x", "y"), ("train_data", "train_label")]),
    named=st.booleans(),
)
@settings(deadline=None, max_examples=30)
def test_a_lone_pair_is_cut(tmp_path_factory, *, size, classes, share, names, named):
    labels = np.arange(size) % classes
    stored = np.array(list("dbca"))[labels] if named else labels
    arrays = dict(zip(names, (rows(0, size), stored), strict=True))
    path = save(tmp_path_factory.mktemp("cut"), "npz", **arrays)
    opened = source(path, val_share=share)
    parts = {name: opened.open(name) for name in opened.split_names}
    assert set(parts) <= {"train", "val"}
    there = sorted(int(row) for part in parts.values() for row in part.images[:, 0])
    assert there == list(range(size))
    ranks = np.argsort(np.argsort(list("dbca"[:classes]))) if named else np.arange(classes)
    for name, part in parts.items():
        assert part.name == name
        own = part.images[:, 0].astype(int)
        assert np.array_equal(own, np.sort(own))
        assert np.array_equal(part.labels, ranks[labels[own]])
    assert len(set(parts["train"].labels.tolist())) == min(classes, size)
    # Rows that are added at the end move no other from side to side, but for the last of a class.
    if "val" in parts and size > 100:
        arrays = {name: array[:-1] for name, array in arrays.items()}
        shorter = source(save(tmp_path_factory.mktemp("cut"), "npz", **arrays), val_share=share)
        before, after = parts["val"].images[:, 0], shorter.open("val").images[:, 0]
        assert len(set(before) ^ set(after)) <= 2


@pytest.mark.parametrize("size", [1, 3])
def test_a_lone_pair_that_is_too_small_to_cut(tmp_path, size):
    """An example of each class is for training in any case."""
    path = save(tmp_path, "npz", x=rows(0, size), y=np.arange(size))
    assert source(path).open("train").size == size
    assert refused(path, "val", val_share=0.5) == (
        f"there is no split 'val' in {path}; its splits: train ({size} examples), too few to "
        "cut data.val_share=0.5 from; raise it, or give more examples; train+val is all of them"
    )
    both = source(path, val_share=0.5).open("train+val")
    assert (both.name, both.size) == ("train+val", size)
    assert refused(path, "test").endswith("and some of them together as in train+val")


def test_both_parts_of_a_pair_are_one_array_in_memory(tmp_path):
    opened = source(save(tmp_path, "npz", x=rows(0, 99), y=np.arange(99) % 2))
    with futures.ThreadPoolExecutor(2) as pool:
        one, other = pool.map(opened.open, ["train+val", "val+train"])
    assert np.shares_memory(*(split._images for split in (one, other)))


def test_a_lone_test_split_is_not_cut(tmp_path):
    path = save(tmp_path, "npz", x_test=rows(0, 40), y_test=np.arange(40) % 2)
    opened = source(path)
    assert opened.split_names == ("test",)
    assert opened.open("test").size == 40


def test_names_of_classes(tmp_path, form):
    train, test = np.array(["b", "c", "a", "b"]), np.array(["c", "a"])
    arrays = {"x_train": rows(0, 4), "y_train": train, "x_test": rows(4, 2), "y_test": test}
    path = save(tmp_path, form, **arrays)
    opened = source(path)
    assert opened.class_names == ("a", "b", "c")
    assert opened.open("train").labels.tolist() == [1, 2, 0, 1]
    assert opened.open("test").labels.tolist() == [2, 0]
    given = source(path, class_names=("c", "b", "a"))
    assert given.class_names == ("c", "b", "a")
    assert given.open("train").labels.tolist() == [1, 0, 2, 1]
    assert "train has the class 'a', which is none of the classes b, c; remove it, or add it" in (
        refused(path, class_names=("b", "c"))
    )


def test_classes_are_those_of_the_training_split(tmp_path, form):
    train, test = np.array(["b", "a"]), np.array(["a", "c"])
    arrays = {"x_train": rows(0, 2), "y_train": train, "x_test": rows(2, 2), "y_test": test}
    path = save(tmp_path, form, **arrays)
    assert source(path).class_names == ("a", "b")
    said = "split test has the class 'c', which is none of the classes a, b; remove it, or give "
    assert said in refused(path, "test")
    assert source(path, train_split="train+test").open("test").labels.tolist() == [0, 2]
    only = save(tmp_path, "npz", x_test=rows(2, 2), y_test=test)
    assert source(only).class_names == ("a", "c")
    model = source(only, class_names=("a", "b", "c"))
    assert model.open("test").labels.tolist() == [0, 2]


def test_numbers_with_names(tmp_path, form):
    arrays = {"data": rows(0, 3), "target": np.array([1, 0, 1]), "target_names": ["no", "yes"]}
    path = save(tmp_path, form, **arrays)
    assert source(path, val_share=0.01).class_names == ("no", "yes")
    for names, labels in (
        (("no", "yes"), [1, 0, 1]),
        (("yes", "no"), [0, 1, 0]),  # by name
        (("maybe", "yes", "no"), [1, 2, 1]),
        (("off", "on"), [1, 0, 1]),  # other names for the same classes
    ):
        found = source(path, val_share=0.01, class_names=names)
        assert found.open("train").labels.tolist() == labels
    said = refused(path, class_names=("yes", "maybe"))
    assert "its class names have the class 'no', which is none of the classes yes, maybe;" in said
    arrays["target"] = np.array([1, 2, 0])
    (tmp_path / "b").mkdir()
    path = save(tmp_path / "b", form, **arrays)
    assert "holds 2 at index 1, but there are 2 class names" in (
        refused(path, class_names=("yes", "no"))
    )


def test_numbers_are_names_if_all_of_them_are_known(tmp_path, form):
    names = tuple(sorted(map(str, range(11))))  # as a folder of images has them: "2" is class 3
    arrays = {"x_train": rows(0, 3), "y_train": np.array([2, 10, 0])}
    arrays |= {"x_test": rows(3, 2), "y_test": np.array([1.0, 9.0])}
    path = save(tmp_path, form, **arrays)
    opened = source(path, class_names=names)
    assert opened.class_names == names
    assert opened.open("train").labels.tolist() == [3, 2, 0]
    assert opened.open("train+test").labels.tolist() == [3, 2, 0, 1, 10]
    assert source(path).open("train").labels.tolist() == [2, 10, 0]
    # One that is no name makes all of them numbers of classes, also those of other splits.
    for unknown in (names[:-1], [f"class {name}" for name in names]):
        assert source(path, class_names=tuple(unknown)).open("train").labels.tolist() == [2, 10, 0]


def test_what_numbers_with_names_are_is_not_told_by_the_names_of_the_run(tmp_path):
    own = {"x": rows(0, 3), "y": np.array([0, 1, 2]), "class_names": ["2", "1", "0"]}
    opened = source(save(tmp_path, "npz", **own), class_names=("0", "1", "2"), val_share=0.01)
    assert opened.open("train").labels.tolist() == [2, 1, 0]
    columns = save(tmp_path, "npz", x=rows(0, 3), y=np.eye(3)[[0, 1, 2]])
    opened = source(columns, class_names=("2", "1", "0"), val_share=0.01)
    assert opened.open("train").labels.tolist() == [0, 1, 2]


def test_names_are_composed_on_both_sides(tmp_path):
    path = save(tmp_path, "npz", x=rows(0, 2), y=np.array(["caf\u00e9", "bar"]))
    opened = source(path, class_names=("cafe\u0301", "bar"), val_share=0.01)
    assert opened.open("train").labels.tolist() == [0, 1]


@pytest.mark.parametrize("own", [{}, {"class_names": ["a", "b"]}])
def test_numbers_of_classes_start_at_0(tmp_path, form, own):
    arrays = {"x": rows(0, 40), "y": np.arange(40) % 2 * -2 + 1.0}
    path = save(tmp_path, form, **arrays, **own)
    for name in ("train", "train+val"):
        said = refused(path, name)
        assert f"{path}" in said
        assert "holds -1 at index 1, as 20 of its 40 labels are below 0, but class numbers" in said
        assert "start at 0; number the classes, as by np.unique(y, return_inverse=True)" in said
    if not own:  # they may be names
        assert source(path, class_names=("-1", "1")).open("train+val").labels[:2].tolist() == [1, 0]


def test_columns_say_how_many_classes_there_are(tmp_path):
    path = save(tmp_path, "npz", x=rows(0, 3), y=np.eye(5)[[0, 1, 2]])
    assert source(path).class_names == tuple("01234")


def test_names_beside_numbers(tmp_path):
    arrays = {"x_train": rows(0, 2), "y_train": np.array(["a", "b"])}
    path = save(tmp_path, "npz", **arrays, x_test=rows(2, 2), y_test=np.array([0, 1]))
    assert "names as labels of one of the splits test and train, but numbers" in (
        refused(path, "test")
    )


def test_what_does_not_fit(tmp_path):
    path = save(tmp_path, "npz", x_train=rows(0, 3), y_train=np.arange(4))
    assert "x_train in " in refused(path)
    assert "holds 3 examples, but y_train 4 labels; they must be as many" in refused(path)
    arrays = {"y_train": np.arange(3), "x_val": np.ones((3, 5)), "y_val": np.arange(3)}
    path = save(tmp_path, "npz", x_train=rows(0, 3), **arrays)
    assert "are not alike: train 2 features but val 5 features;" in refused(path, "train+val")


@pytest.mark.parametrize("form", ["npz", "folder"])
def test_objects_are_never_unpickled(tmp_path, form):
    class Bad:
        def __reduce__(self):
            return (tmp_path.joinpath("loaded").touch, ())

    for name in ("x", "y"):
        arrays = {"x": rows(0, 2), "y": np.arange(2)} | {name: np.array([Bad(), Bad()])}
        (tmp_path / name).mkdir()
        path = save(tmp_path / name, form, **arrays)
        assert "holds Python objects, which are not read, as they may run code; save" in (
            refused(path)
        )
    assert not (tmp_path / "loaded").exists()


def test_damaged_files(tmp_path):
    place = tmp_path / "a.npz"
    assert "cannot be read: No such file or directory (it counts from" in refused(str(place))
    for content in (b"", b"text"):
        place.write_bytes(content)
        assert "is neither a whole .npz file nor a folder of .npy files; save the" in (
            refused(str(place))
        )
    np.savez(place, x=rows(0, 50), y=np.arange(50) % 2)
    content = place.read_bytes()
    place.write_bytes(content[:-100])
    assert "is neither a whole .npz file" in refused(str(place))
    middle = content.index(b"NUMPY") + 200
    place.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    assert f"x in {place} cannot be read: Bad CRC-32" in refused(str(place))
    folder = save(tmp_path, "folder", x=rows(0, 50), y=np.arange(50) % 2)
    file = tmp_path / "arrays" / "x.npy"
    file.write_bytes(file.read_bytes()[:-1])
    assert f"{file} cannot be read: " in refused(folder)
    np.save(tmp_path / "x.npy", rows(0, 2))
    assert "is neither a whole .npz file" in refused(str(tmp_path / "x.npy"))
    assert "needs data.path, an .npz file or a folder of .npy files" in refused(None)
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / ".x.npy").touch()
    assert "it holds nothing; name them" in refused(str(tmp_path / "none"))


@pytest.mark.parametrize("form", ["npz", "folder"])
def test_features_that_float32_cannot_tell_apart(tmp_path, form):
    labels = np.arange(40) % 2
    times = (1.7e9 + 40 * labels + rows(0, 40)[:, 0] / 10).reshape(-1, 1)
    arrays = {"x_test": times, "y_test": labels, "x_train": times, "y_train": labels}
    path = save(tmp_path, form, **arrays)
    said = refused(path)
    assert "x_train" in said
    assert "feature 0 has numbers up to 1.7e+09 with a deviation of 20." in said
    assert "subtract its mean first" in said
    assert "x_test" in refused(path, "train+test", train_split="train+test")
    # What is only evaluated may be few rows, whose deviation says nothing.
    assert source(path).open("test").size == 40
    mended = arrays | {"x_train": times - 1.7e9}
    (tmp_path / "mended").mkdir()
    assert source(save(tmp_path / "mended", form, **mended)).open("train").size == 40


@pytest.mark.parametrize("name", ["train", "val", "train+val"])
def test_features_of_a_pair_that_is_cut_are_checked_as_well(tmp_path, name):
    path = save(tmp_path, "npz", x=1e12 + rows(0, 99), y=np.arange(99) % 2)
    assert "feature 0 has numbers up to 1e+12" in refused(path, name, train_split=name)


def test_a_member_that_is_no_array(tmp_path):
    for content in (b"", b"junk"):
        path = save(tmp_path, "npz", y=np.arange(2))
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("x.npy", content)
        assert f"x in {path} is no .npy array, but {len(content)} bytes of something else" in (
            refused(path)
        )


def test_pipes_and_devices_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    for path in (str(tmp_path / "pipe.npz"), "/dev/zero"):
        assert refused(path) == (f"data.path={path} is no regular file; copy the arrays into one")
    path = save(tmp_path, "folder", y=np.arange(2))
    os.mkfifo(tmp_path / "arrays" / "x.npy")
    os.mkfifo(tmp_path / "arrays" / "unused.npy")
    assert refused(path) == f"{path}/x.npy is no regular file; copy the array into one"
    (tmp_path / "arrays" / "x.npy").unlink()
    np.save(tmp_path / "x.npy", rows(0, 2))
    (tmp_path / "arrays" / "x.npy").symlink_to(tmp_path / "x.npy")
    assert source(path).open("train").size == 2


def test_a_file_that_cannot_be_reached(open_place, locked):
    path = save(open_place, "npz", x=rows(0, 2), y=np.arange(2))
    with locked(open_place, 0o444):
        assert f"data.path={path} cannot be read: Permission denied" in refused(path)
    assert "cannot be read: File name too long" in refused(str(open_place / ("x" * 300)))


def test_two_files_of_one_array(tmp_path):
    path = save(tmp_path, "folder", x=rows(0, 2), y=np.arange(2))
    np.save(tmp_path / "x.npy", rows(2, 2))
    (tmp_path / "x.npy").rename(tmp_path / "arrays" / "x.NPY")
    if len(list((tmp_path / "arrays").iterdir())) == 3:  # the file system tells cases apart
        assert refused(path) == (
            f"{path} has two files of an array x, x.NPY and x.npy; remove or rename one"
        )
