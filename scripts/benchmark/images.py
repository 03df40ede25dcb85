"""Speeds of image loaders on 500x375 JPEG files, measured in turns.

    python images.py ROUNDS TORCH_PYTHON

TORCH_PYTHON is a Python that has torch and torchvision; `-` leaves them out, as tf.data is left out
where there is no TensorFlow here. Prints JSON: for each loader, the speed and the memory of each
round.
"""

import contextlib
import importlib.util
import io
import json
import math
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np
from image_loaders import BATCH, SIZE
from PIL import Image, ImageDraw, ImageFilter

HEIGHT, WIDTH = SIZE
QUALITY = 90
SCENES = 64
COPIES = 16  # of each scene, in files of their own
BATCHES = 16  # of the first rounds: as many images as there are files
SECONDS = 3.0  # that a round takes, after its warm-up
OURS = ("none", "memory", "disk")  # data.cache
LOADERS = pathlib.Path(__file__).with_name("image_loaders.py")


def noise(random: np.random.Generator, slope: float) -> np.ndarray:
    """A field whose spectrum falls as f**-slope, as that of photos does; its variance is 1."""
    down, across = np.fft.fftfreq(HEIGHT)[:, None], np.fft.rfftfreq(WIDTH)[None]
    frequency = np.hypot(down, across)
    frequency[0, 0] = np.inf
    shape = frequency.shape
    spectrum = (random.normal(size=shape) + 1j * random.normal(size=shape)) / frequency**slope
    field = np.fft.irfft2(spectrum, s=(HEIGHT, WIDTH))
    return field / field.std()


def scene(random: np.random.Generator) -> Image.Image:
    """Light and colours like a photo's, its grain, and things with edges."""
    light = 120 + 45 * noise(random, 1.1) + 3 * random.normal(size=(HEIGHT, WIDTH))
    blue, red = 25 * noise(random, 1.5), 25 * noise(random, 1.5)
    pixels = np.stack([light + red, light - 0.4 * blue - 0.6 * red, light + blue], axis=-1)
    for _ in range(6):
        mask = Image.new("L", (WIDTH, HEIGHT))
        middle, radius = random.uniform(0, (WIDTH, HEIGHT)), random.uniform(20, 150)
        angles = np.sort(random.uniform(0, 2 * np.pi, random.integers(3, 9)))
        corners = middle + radius * np.stack([np.cos(angles), np.sin(angles)], axis=-1)
        ImageDraw.Draw(mask).polygon([tuple(corner) for corner in corners], fill=255)
        share = np.asarray(mask.filter(ImageFilter.GaussianBlur(0.7)))[..., None] / 255
        thing = random.uniform(20, 235, 3) + 12 * noise(random, 1.0)[..., None]
        pixels = pixels * (1 - share) + thing * share
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def make_photos(folder: pathlib.Path) -> int:
    """Writes the files, half of them in each of two classes; returns their mean size in bytes."""
    random = np.random.default_rng(0)
    total = 0
    for split in ("train", "val"):
        for name in ("a", "b"):
            (folder / "photos" / split / name).mkdir(parents=True)
    for number in range(SCENES):
        content = io.BytesIO()
        scene(random).save(content, "JPEG", quality=QUALITY, subsampling="4:2:0")
        total += len(content.getvalue())
        below = "ab"[number % 2]
        for copy in range(COPIES):
            path = folder / "photos" / "train" / below / f"{number}-{copy}.jpg"
            path.write_bytes(content.getvalue())
        (folder / "photos" / "val" / below / f"{number}.jpg").write_bytes(content.getvalue())
    return total // SCENES


class Loader:
    """A process that measures when it is asked to."""

    def __init__(self, python: str, name: str, folder: pathlib.Path):
        self._process = subprocess.Popen(
            [python, str(LOADERS), name, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def measure(self, batches: int) -> dict[str, Any]:
        """Reads so many batches."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(batches, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            sys.exit(f"{self._process.args} ended with {self._process.wait()}")
        measured: dict[str, Any] = json.loads(answer)
        return measured

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """Measures all loaders in turns, after two rounds that fill caches and tell how fast it is."""
    rounds, torch_python = int(sys.argv[1]), sys.argv[2]
    pythons = dict.fromkeys(OURS, sys.executable)
    if importlib.util.find_spec("tensorflow") is not None:
        pythons |= dict.fromkeys(("tf.data", "tf.data antialiased"), sys.executable)
    if torch_python != "-":
        pythons["torch"] = torch_python
    with tempfile.TemporaryDirectory(prefix="jaxtrain-benchmark-") as path:
        folder = pathlib.Path(path)
        mean_bytes = make_photos(folder)
        with contextlib.ExitStack() as stack:
            loaders = {}
            for name, python in pythons.items():
                loaders[name] = Loader(python, name, folder)
                stack.callback(loaders[name].close)
                loaders[name].measure(BATCHES)
            speeds = {
                name: loader.measure(BATCHES)["images_per_second"]
                for name, loader in loaders.items()
            }
            batches = {name: math.ceil(SECONDS * speed / BATCH) for name, speed in speeds.items()}
            measured: dict[str, list[dict[str, Any]]] = {name: [] for name in loaders}
            for _ in range(rounds):
                for name, loader in loaders.items():
                    measured[name].append(loader.measure(batches[name]))
    print(json.dumps({"mean_bytes": mean_bytes, "measured": measured}))


if __name__ == "__main__":
    main()
