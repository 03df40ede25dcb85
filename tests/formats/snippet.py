"""Runs the program that an export's README shows."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from formats.sources import CLASS_NAMES

# Names that are None here cannot be imported.
_WITHOUT = "import sys; sys.modules.update(dict.fromkeys({names!r})); exec(sys.stdin.read())"


def printed(
    snippet: str, folder: Path, image: np.ndarray, without: Iterable[str]
) -> list[tuple[str, float]]:
    """The class and the probability that it prints of each image; it prints nothing else.

    Args:
        snippet: the program.
        folder: of the exported model.
        image: uint8 `[n, H, W, C]`.
        without: packages that it cannot import, beside jaxtrain.
    """
    np.save(folder / "images.npy", image)
    (folder / "classes.json").write_text(json.dumps(CLASS_NAMES), "utf-8")
    program = _WITHOUT.format(names=["jaxtrain", *without])
    environment = os.environ | {"PYTHONWARNINGS": "error", "PYTHONUTF8": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=snippet,
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.rpartition(" ") for line in done.stdout.splitlines()]
    return [(name, float(probability)) for name, _, probability in lines]
