"""Batches of random parts of JPEG files, as one loader makes them, measured when asked to.

    python image_loaders.py LOADER FOLDER

Below FOLDER lie `photos/train/CLASS/*.jpg`, `photos/val/...` and room for a cache. For each line on
standard input, with a number of batches, it warms up, reads as many and answers with a line of
JSON: images a second, seconds of all processors that each took, and the bytes of its memory that
are its own. Between those it waits, with what it has read ahead, so that only one of several such
processes works at a time.

It imports what its loader needs, and so runs under a Python that has no jaxtrain, too.
"""

import json
import os
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

BATCH = 64
SIDE = 224
SIZE = (375, 500)  # of the files
PARTS = 10_000
THREADS = 2
# More than any of them reads ahead.
DISCARDED = 16
# Threads that were idle share a core at first.
WARM_UP_SECONDS = 1.0


def jaxtrain(folder: pathlib.Path, cache: str) -> Iterator[Any]:
    """The batches that `jaxtrain train` reads."""
    from jaxtrain import data  # noqa: PLC0415
    from jaxtrain.config.schema import DataConfig  # noqa: PLC0415

    config = DataConfig(
        source="folder",
        path=str(folder / "photos"),
        image_size=(SIDE,),
        crop="random_resized(0.08,1.0)",
        cache=cache,
        cache_path=str(folder / "cache"),
        threads=THREADS,
    )
    split = data.open_dataset(config).train
    split.prepare(data.silent)
    batches = data.Sampler(split.size, BATCH, seed=0).batches(10**6)
    return data.load(split, batches, threads=THREADS, ahead=config.ahead)


def tf_data(folder: pathlib.Path, *, antialias: bool) -> Iterator[Any]:
    """As TensorFlow's guides have it: `decode_and_crop_jpeg` and a resize; antialiased or not.

    It is handed parts that were drawn before, as the other loaders draw them. Its own sampler draws
    smaller ones, which take less time: 0.39 of an image in the mean, where theirs have 0.43.
    """
    import numpy as np  # noqa: PLC0415
    import tensorflow as tf  # noqa: PLC0415

    from jaxtrain.data import crops  # noqa: PLC0415

    tf.config.set_visible_devices([], "GPU")
    paths = sorted(map(str, folder.glob("photos/train/*/*.jpg")))
    draws = np.random.default_rng(0).random((PARTS, crops.DRAWS)).tolist()
    boxes = (crops.random_box(SIZE, crops.RandomResized(), some) for some in draws)
    windows = [(top, left, bottom - top, right - left) for left, top, right, bottom in boxes]

    def load(path: Any, window: Any) -> Any:
        part = tf.io.decode_and_crop_jpeg(tf.io.read_file(path), window, channels=3)
        return tf.cast(tf.image.resize(part, (SIDE, SIDE), antialias=antialias), tf.uint8)

    examples = (
        tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths)).repeat(),
        tf.data.Dataset.from_tensor_slices(windows).repeat(),
    )
    dataset = tf.data.Dataset.zip(*examples).map(load, num_parallel_calls=tf.data.AUTOTUNE)
    # A buffer that grows by itself would be measured instead of the loader.
    return iter(dataset.batch(BATCH).prefetch(4))


def torch(folder: pathlib.Path) -> Iterator[Any]:
    """As PyTorch's ImageNet example has it, but left as uint8."""
    from torch.utils.data import DataLoader  # noqa: PLC0415
    from torchvision import datasets, transforms  # noqa: PLC0415

    change = transforms.Compose([transforms.RandomResizedCrop(SIDE), transforms.PILToTensor()])
    images = datasets.ImageFolder(folder / "photos" / "train", change)
    loader = DataLoader(
        images, BATCH, shuffle=True, num_workers=THREADS, drop_last=True, persistent_workers=True
    )
    while True:
        yield from loader


def opened(loader: str, folder: pathlib.Path) -> Iterator[Any]:
    """The batches of a loader."""
    if loader.startswith("tf.data"):
        return tf_data(folder, antialias=loader == "tf.data antialiased")
    if loader == "torch":
        return torch(folder)
    return jaxtrain(folder, loader)


def own_bytes() -> int:
    """Memory of this process that is not of files."""
    status = pathlib.Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
    return 1024 * int(line.split()[1])


def cpu_seconds() -> float:
    """Of this process and of those that it has started and that are running."""
    task = pathlib.Path(f"/proc/self/task/{os.getpid()}")
    total = time.process_time()
    for child in (task / "children").read_text().split():
        fields = pathlib.Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def main() -> None:
    """Answers until standard input ends."""
    batches = opened(sys.argv[1], pathlib.Path(sys.argv[2]))
    for line in sys.stdin:
        began, discarded = time.perf_counter(), 0
        while discarded < DISCARDED or time.perf_counter() - began < WARM_UP_SECONDS:
            next(batches)
            discarded += 1
        images = BATCH * int(line)
        began, cpu_began = time.perf_counter(), cpu_seconds()
        for _ in range(int(line)):
            next(batches)
        measured = {
            "images_per_second": images / (time.perf_counter() - began),
            "cpu_seconds_per_image": (cpu_seconds() - cpu_began) / images,
            "bytes": own_bytes(),
        }
        print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
