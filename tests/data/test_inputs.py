import gzip
import io
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from jaxtrain.data import ahead, crops
from jaxtrain.data import idx as idx_format
from jaxtrain.data.decode import decode
from jaxtrain.data.inputs import list_inputs
from jaxtrain.errors import DataError, UsageError

SHAPE = (4, 5, 3)


BLACK = (0, 0, 0)


def picture(identity, shape=SHAPE):
    """Tells its identity, up to 65535, in every pixel."""
    image = np.zeros(shape, np.uint8)
    image[..., 0], image[..., -1] = divmod(identity, 256)
    return image


def identities(images):
    return [int(image[0, 0, 0]) * 256 + int(image[0, 0, -1]) for image in images]


def save(path, identity, shape=SHAPE):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture(identity, shape)).save(path, "PNG")
    return str(path)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(*words, stdin=b""):
    """What the words name, in order; read as well, but not looked at."""
    inputs = list_inputs(words, io.BytesIO(stdin))
    found = [name for batch in inputs.batches(3, SHAPE, 1.0, BLACK) for name in batch.names]
    assert len(inputs) == len(found)
    return found


def refused(*words, stdin=b""):
    with pytest.raises(UsageError) as raised:
        list_inputs(words, io.BytesIO(stdin))
    assert str(raised.value).isprintable()
    return str(raised.value)


def test_words_of_all_kinds_come_in_their_order(here, idx):
    save(here / "z.png", 1)
    save(here / "folder/b.jpg", 3)  # by content
    save(here / "folder/a/c.png", 2)
    np.save("rows.npy", np.stack([picture(4), picture(5)]))
    (here / "some-idx").write_bytes(idx(np.stack([picture(6)])))
    save(here / "no suffix", 7)
    save(here / "listed.png", 8)
    inputs = list_inputs(
        ["z.png", "folder", "rows.npy", "some-idx", "no suffix", "-", "z.p?g"],
        io.BytesIO(b"listed.png\n"),
    )
    assert len(inputs) == 9
    batches = list(inputs.batches(4, SHAPE, 1.0, BLACK))
    assert [len(batch.names) for batch in batches] == [4, 4, 1]
    assert [name for batch in batches for name in batch.names] == [
        "z.png",
        "folder/a/c.png",
        "folder/b.jpg",
        "rows.npy[0]",
        "rows.npy[1]",
        "some-idx[0]",
        "no suffix",
        "listed.png",
        "z.png",
    ]
    images = np.concatenate([batch.images for batch in batches])
    assert images.shape == (9, *SHAPE)
    assert images.dtype == np.uint8
    assert identities(images) == [1, 2, 3, 4, 5, 6, 7, 8, 1]
    assert not any(batch.errors for batch in batches)
    assert np.array_equal(next(inputs.batches(9, SHAPE, 1.0, BLACK)).images, images)  # once more


def test_a_folder_holds_what_is_called_an_image_at_any_depth(here):
    inside = ["A.JPG", "b/c/d.webp", "b/e.tiff", "f.gif", "g.jfif", "h h.Png", "\xe9.jpe"]
    for name in inside:
        save(here / "top" / name, 1)
    for name in [".hidden.png", ".git/x.png", "b/.y.png", "notes.txt", "x.heic", "y.HEIC", "raw"]:
        save(here / "top" / name, 2)
    expected = sorted(f"top/{name}" for name in inside)
    assert names("top") == expected
    assert names("top/") == expected
    inputs = list_inputs(["top"], None)
    assert dict(inputs.left_out) == {".heic": 2, ".txt": 1, "without suffix": 1}
    os.chdir("top")
    assert names(".") == [name.replace("top/", "./") for name in expected]
    assert names(".git") == [".git/x.png"]  # named, so meant


def test_links_are_followed_but_not_round(here):
    save(here / "apart/a.png", 1)
    save(here / "top/b.png", 2)
    os.symlink(here / "apart", "top/linked")
    os.symlink("..", "top/up")
    os.symlink(here / "apart/a.png", "top/c.png")
    os.mkfifo("pipe")
    os.symlink("gone", "top/dangling.png")
    os.symlink(here / "pipe", "top/e.png")
    os.symlink("round", "top/round")
    found = names("top")
    own = ["b.png", "c.png", "dangling.png", "e.png", "linked/a.png"]
    assert found == [f"top/{name}" for name in own]
    (batch,) = list_inputs(["top"], None).batches(99, SHAPE, 1.0, BLACK)
    assert batch.errors == {
        2: "the file cannot be read: No such file or directory",
        3: "the file is no regular one",
    }


def test_a_folder_that_is_no_use(here):
    (here / "empty").mkdir()
    (here / "empty/.hidden.png").touch()
    assert refused("empty").endswith("; it holds nothing that is not hidden")
    for name in ("a.txt", "b.heic", "c.heic", "d"):
        (here / "empty" / name).touch()
    message = refused("empty")
    assert message.startswith("empty holds no images (.bmp .gif ")
    assert message.endswith("; it holds 2 .heic, 1 .txt, 1 without suffix")


def test_patterns(here):
    for name in ("b2.png", "b1.png", "c.png", "d/e.png", "d/f/g.png", "d/.h.png"):
        save(here / name, 1)
    assert names("b*.png") == ["b1.png", "b2.png"]
    assert names("[bc]*") == ["b1.png", "b2.png", "c.png"]
    assert names("d*") == ["d/e.png", "d/f/g.png"]
    assert names("**/*.png") == ["b1.png", "b2.png", "c.png", "d/e.png", "d/f/g.png"]
    assert names("d/**") == ["d/e.png", "d/f/g.png"]
    assert refused("*.gif").startswith("*.gif matches no file (it counts from ")
    save(here / "b[12].png", 1)
    assert names("b[12].png") == ["b[12].png"]
    save(here / "?*.png", 1)
    assert names("?*.png") == ["?*.png"]


def test_a_list_on_stdin(here):
    for name in ("a.png", "b b.png", "c*.png", "d\n.png", "-"):
        save(here / name, 1)
    assert names("-", stdin=b"b b.png\r\n\na.png") == ["b b.png", "a.png"]
    assert names("-", stdin=b"d\n.png\0a.png\0") == ["d\n.png", "a.png"]
    assert names("-", stdin=b"c*.png\n") == ["c*.png"]  # no pattern
    assert names("-", stdin=b"-\n") == ["-"]
    assert names("./-") == ["./-"]
    np.save("rows.npy", np.stack([picture(4), picture(5)]))
    assert names("-", stdin=b"rows.npy") == ["rows.npy[0]", "rows.npy[1]"]
    assert names("-", stdin=b"\xff.png") == ["\udcff.png"]
    (batch,) = list_inputs(["-"], io.BytesIO(b"gone*.png\na.png\n")).batches(9, SHAPE, 1.0, BLACK)
    assert batch.errors == {0: "the file cannot be read: No such file or directory"}
    assert batch.names == ["gone*.png", "a.png"]
    for content in (b"", b"\n\r\n", b"\0"):
        assert "stdin holds no paths" in refused("-", stdin=content)
    assert "given twice" in refused("-", "a.png", "-", stdin=b"a.png")
    with pytest.raises(UsageError, match="stdin holds no paths"):
        list_inputs(["-"], None)


def test_what_names_nothing(here):
    os.symlink("gone", "dangling.png")
    os.mkfifo("pipe.png")
    for word, shown in (("gone.png", "gone.png"), ("dangling.png", "dangling.png"), ("", "''")):
        assert refused(word).startswith(f"{shown} cannot be read: No such file or directory (")
    assert refused("pipe.png").startswith("pipe.png is neither a file nor a folder")
    for word in ("http://x.org/a.png", "https://x.org/?a", "gs://bucket/a.png", "s3://b/*.png"):
        assert refused(word) == f"{word} is not local; copy it to a local disk first"
    assert "is not local" in refused("-", stdin=b"gs://bucket/a.png")
    assert refused() == "there are no images; give the path of a file, a folder or an array"


BAD_ARRAYS = {
    "float.npy": (np.zeros((2, 4, 5), np.float32), "holds float32 of shape [2, 4, 5]; images are"),
    "int.npy": (np.zeros((2, 4, 5), np.int64), "holds int64 of"),
    "row.npy": (np.zeros(5, np.float32), "holds float32 of shape [5]; images are uint8 [N, H, W, "),
    "texts.npy": (np.full((4, 5), "a"), "if grey, features numbers [N, D]"),
    "deep.npy": (np.zeros((1, 1, 1, 1, 1), np.uint8), "images are uint8 [N, H, W, C], or [N, H, "),
    "none.npy": (np.zeros((0, 4, 5), np.uint8), "none.npy "),
    "empty.npy": (np.zeros((2, 0, 5), np.uint8), "empty.npy "),
    "objects.npy": (np.array([None]), "is no whole .npy array: "),
}


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_arrays_that_are_not_of_images(here, name):
    array, said = BAD_ARRAYS[name]
    np.save(name, array)
    assert said in refused(name)


def test_damaged_arrays(here, idx):
    np.save("a.npy", np.stack([picture(1)]))
    whole = (here / "a.npy").read_bytes()
    for content in (whole[:-1], whole[:20], b"", b"text"):
        (here / "a.npy").write_bytes(content)
        assert refused("a.npy").startswith("a.npy is no whole .npy array: ")
    np.savez("a.npz", x=picture(1))
    assert refused("a.npz").startswith("a.npz is no .npy array, but an archive of some; save the ")
    (here / "labels").write_bytes(idx(np.arange(9, dtype=np.uint8)))
    assert refused("labels").startswith("labels is not an IDX file of images: it starts with 0000")
    (here / "cut.gz").write_bytes(gzip.compress(idx(np.stack([picture(1)])))[:-9])
    assert refused("cut.gz").startswith("cut.gz is damaged gzip: ")


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("channels", [1, 3])
def test_rows_of_arrays_by_content(here, idx, pack, channels):
    images = np.stack([picture(each, (4, 5, channels)) for each in range(7)])
    stored = images[..., 0] if channels == 1 else images
    (here / "x").write_bytes(pack(idx(stored)))
    np.save("y.npy", stored)
    os.rename("y.npy", "y")
    np.save("f.npy", np.asfortranarray(stored))
    inputs = list_inputs(["x", "y", "f.npy"], None)
    assert len(inputs) == 21
    batches = list(inputs.batches(4, (4, 5, channels), 1.0, BLACK))
    assert batches[2].names == ["y[1]", "y[2]", "y[3]", "y[4]"]
    assert np.array_equal(np.concatenate([batch.images for batch in batches]), [*images] * 3)
    with pytest.raises(UsageError, match=rf"x holds 7 .* of 4x5 and {channels} channels, but the"):
        inputs.batches(4, (4, 5, 4), 1.0, BLACK)


@pytest.mark.parametrize("dtype", ["f4", ">f8", "f2", "i8", "u1"])
def test_rows_of_features(here, dtype):
    features = np.arange(21).reshape(7, 3).astype(dtype)
    np.save("x.npy", features)
    np.save("y.npy", np.asfortranarray(features))
    batches = list(list_inputs(["x.npy", "y.npy"], None).batches(4, (3,), 1.0, BLACK))
    assert batches[1].names == ["x.npy[4]", "x.npy[5]", "x.npy[6]", "y.npy[0]"]
    found = np.concatenate([batch.images for batch in batches])
    assert found.dtype == np.float32
    assert np.array_equal(found, [*features] * 2)


def test_features_that_are_no_numbers_are_errors_of_their_row(here):
    features = np.ones((4, 3))
    features[0, 2], features[2, 1] = np.nan, 1e39
    np.save("x.npy", features)
    (batch,) = list_inputs(["x.npy"], None).batches(9, (3,), 1.0, BLACK)
    assert batch.errors == {
        0: "feature 2 is nan, which is no finite float32",
        2: "feature 1 is 1e+39, which is no finite float32",
    }
    assert batch.images.tolist() == [[0, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 1]]


def test_images_and_features_are_told_apart(here):
    save(here / "a.png", 1)
    np.save("images.npy", np.zeros((2, 4, 5), np.uint8))
    np.save("features.npy", np.zeros((2, 3)))
    for name, shape, said in (
        ("a.png", (3,), "a.png is no array, but the model takes 3 features; give a .npy file of "),
        ("images.npy", (3,), "holds 2 examples of 4x5x1, but the model takes 3 features; give "),
        ("features.npy", (4,), "holds 2 examples of 3 features, but the model takes 4 features;"),
        ("features.npy", SHAPE, "holds 2 examples of 3 features, but the model takes 4x5x3; give "),
    ):
        with pytest.raises(UsageError, match=re.escape(said)):
            list_inputs([name], None).batches(9, shape, 1.0, BLACK)


@settings(deadline=None, max_examples=25)
@given(
    kinds=st.lists(st.sampled_from(["file", "bad", "row"]), min_size=1, max_size=40),
    size=st.integers(1, 45),
)
def test_bad_images_are_zeros_and_the_rest_goes_on_in_order(tmp_path_factory, kinds, size):
    folder = tmp_path_factory.mktemp("mixed")
    words, expected = [], []
    for identity, kind in enumerate(kinds, start=1):
        path = folder / f"{identity:03}.{'npy' if kind == 'row' else 'png'}"
        if kind == "row":
            np.save(path, picture(identity)[None])
        else:
            save(path, identity)
        if kind == "bad":
            path.write_bytes(path.read_bytes()[:-25])
        words.append(str(path))
        expected.append(0 if kind == "bad" else identity)
    batches = list(list_inputs(words, None).batches(size, SHAPE, 1.0, BLACK))
    assert [len(batch.names) for batch in batches[:-1]] == [size] * (len(batches) - 1)
    assert [each for batch in batches for each in identities(batch.images)] == expected
    for batch in batches:
        assert len(batch.images) == len(batch.names)
        bad = [row for row, image in enumerate(batch.images) if not image.any()]
        assert sorted(batch.errors) == bad
        assert all(text.startswith("the image is broken: ") for text in batch.errors.values())


def test_sizes_are_those_of_evaluation(here):
    shapes = [(40, 30, 3), (30, 40, 3), (1, 1, 3), (1, 500, 3), (16, 24, 3)]
    images = [np.random.RandomState(0).randint(0, 256, shape).astype(np.uint8) for shape in shapes]
    for number, image in enumerate(images):
        Image.fromarray(image).save(f"{number}.png")
    np.save("a.npy", images[0][None])
    words = [*(f"{number}.png" for number in range(len(images))), "a.npy"]
    (batch,) = list_inputs(words, None).batches(9, (16, 24, 3), 0.875, BLACK)
    expected = [crops.center(image, (16, 24), 0.875) for image in [*images, images[0]]]
    assert np.array_equal(batch.images, expected)
    grey = next(list_inputs(words[:1], None).batches(1, (16, 24, 1), 1.0, BLACK)).images
    encoded = (here / "0.png").read_bytes()
    assert np.array_equal(grey[0], crops.center(decode(encoded, 1), (16, 24), 1.0))


def test_a_file_that_cannot_be_an_image(here):
    with open("video.jpg", "wb") as file:
        file.truncate(2**30 + 1)
    (here / "notes.txt").write_text("not an image")
    (here / "empty.png").touch()
    inputs = list_inputs(["video.jpg", "notes.txt", "empty.png"], None)
    (batch,) = inputs.batches(9, SHAPE, 1.0, BLACK)
    assert sorted(batch.errors) == [0, 1, 2]
    assert batch.errors[0].startswith("the file has 1,073,741,825 bytes, more than the 1,073,741,8")
    assert batch.errors[1].startswith("the image is no JPEG, PNG, WebP, BMP, TIFF or GIF")
    assert batch.errors[2] == "the image is empty: its file has 0 bytes"


class Watched:
    """Examples that count how many were read."""

    def __init__(self, count, read=picture):
        self.count = count
        self.reads = 0
        self.lock = threading.Lock()
        self._read = read

    def __iter__(self):
        for identity in range(self.count):
            yield str(identity), lambda identity=identity: self.read(identity)

    def read(self, identity):
        with self.lock:
            self.reads += 1
        return self._read(identity)


def wait_for_the_end():
    """Of the threads that read."""
    deadline = time.monotonic() + 20
    while any(thread.name == "read ahead" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_order_is_kept_where_some_take_longer():
    def slow(identity):
        time.sleep(0.002 * (identity % 3 == 0))
        return picture(identity)

    batches = list(ahead.read_ahead(Watched(50, slow), 7, SHAPE))
    assert [name for batch in batches for name in batch.names] == list(map(str, range(50)))
    assert [each for batch in batches for each in identities(batch.images)] == list(range(50))


def test_little_is_read_ahead():
    watched = Watched(1000)
    batches = ahead.read_ahead(watched, 10, SHAPE)
    assert watched.reads == 0
    for number in range(1, 6):
        next(batches)
        time.sleep(0.02)
        assert watched.reads <= 10 * (number + 2)
    batches.close()
    wait_for_the_end()
    assert watched.reads <= 70


def test_memory_is_flat():
    shape = (50, 50, 3)

    def most(count):
        tracemalloc.start()
        watched = Watched(count, lambda identity: picture(identity, shape))
        for _ in ahead.read_ahead(watched, 50, shape):
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert most(2000) < 1.2 * most(400) + 1e5


def test_threads_end():
    wait_for_the_end()
    list(ahead.read_ahead(Watched(20), 6, SHAPE))
    wait_for_the_end()
    batches = ahead.read_ahead(Watched(1000), 6, SHAPE)
    next(batches)
    batches.close()
    wait_for_the_end()


def test_faults_are_raised_in_their_turn():
    def fails(identity):
        if identity == 8:
            raise ZeroDivisionError
        if identity == 2:
            raise DataError("bad")
        return picture(identity)

    batches = ahead.read_ahead(Watched(20, fails), 5, SHAPE)
    assert next(batches).errors == {2: "bad"}
    with pytest.raises(ZeroDivisionError):
        next(batches)


HANGS = r"""
import os, time
from jaxtrain.data import ahead
def read():
    os.write(1, b"reading\n")
    time.sleep(1000)
for _ in ahead.read_ahead([("a", read)] * 9, 9, (1, 1, 1)):
    pass
"""


def test_ctrl_c_ends_at_once():
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HANGS], stdout=pipe, stderr=pipe) as process:
        try:
            assert process.stdout.readline() == b"reading\n"
            process.send_signal(signal.SIGINT)
            assert b"KeyboardInterrupt" in process.communicate(timeout=20)[1]
        finally:
            process.kill()


def test_the_packed_mnist():
    path = Path(idx_format.__file__).parent / "mnist/t10k-images-idx3-ubyte.gz"
    inputs = list_inputs([str(path)], None)
    assert len(inputs) == 10_000
    first = next(inputs.batches(10, (28, 28, 1), 1.0, BLACK))
    assert first.names[9] == f"{path}[9]"
    assert np.array_equal(first.images, idx_format.read_images(path)[:10])


@pytest.mark.parametrize("magic", [b"\x89PNG\r\n\x1a\n\0", b"\xff\xd8\xff\xe0\0", b"GIF89a"])
def test_an_image_on_stdin_is_no_list(magic):
    with pytest.raises(UsageError, match=r"stdin holds an image, not a list of paths; name its"):
        list_inputs(["-"], io.BytesIO(magic + b"more\n"))


@pytest.mark.parametrize("header", [b"{'descr': (('|u1'", b"{'descr': '|u1', 'shape': (-5, 2, 2)"])
def test_a_broken_header_of_an_array_is_said(tmp_path, header):
    path = tmp_path / "broken.npy"
    text = header.ljust(117) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\0" + len(text).to_bytes(2, "little") + text + bytes(40))
    with pytest.raises(UsageError, match=r"broken\.npy is no whole \.npy array"):
        list_inputs([str(path)], None)


def test_more_arrays_than_a_process_may_open(tmp_path):
    for index in range(300):
        np.save(tmp_path / f"{index:03}.npy", np.full((1, 2, 2, 1), index % 256, np.uint8))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 60, hard))
    try:
        inputs = list_inputs([str(tmp_path / "*.npy")], None)
        found = [batch.images[:, 0, 0, 0] for batch in inputs.batches(7, (2, 2, 1), 1.0, BLACK)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert np.concatenate(found).tolist() == [index % 256 for index in range(300)]


@pytest.mark.parametrize("background", [BLACK, (255, 255, 255), (10, 20, 30)])
def test_transparent_images_lie_on_the_background_of_training(here, background):
    Image.fromarray(np.zeros((4, 5, 4), np.uint8)).save("clear.png")
    (batch,) = list_inputs(["clear.png"], None).batches(1, (4, 5, 3), 1.0, background)
    assert (batch.images == np.array(background, np.uint8)).all()
