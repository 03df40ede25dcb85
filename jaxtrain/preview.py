"""A picture of training examples, as they are and as a step trains on them."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxtrain import data, grid
from jaxtrain.augment import partners
from jaxtrain.data.examples import is_image, shape_text
from jaxtrain.errors import UsageError
from jaxtrain.files import atomic_write_bytes, behind_links
from jaxtrain.keys import step_key
from jaxtrain.normalise import unit_interval
from jaxtrain.setup import Run

# Values of all images of a picture: they lie on the device as float32, a few times.
_MOST_PIXELS: Final = 2**26


@dataclasses.dataclass(frozen=True)
class Examples:
    """Rows of one step's batch, from the first on.

    Attributes:
        before: float32 `[rows, H, W, C]` in 0..1, as evaluation sees them, not yet normalised.
        after: float32 `[rows, H, W, C]` in 0..1, as the step trains on them, at its size.
        labels: int32 `[rows]`.
        others: int32 `[rows]`, labels of what is mixed in.
        shares: float32 `[rows]`, how much of `after` and of its label is not mixed in.
        changes: the keys that make the difference, with their values; none if there is none.
    """

    before: NDArray[np.float32]
    after: NDArray[np.float32]
    labels: NDArray[np.int32]
    others: NDArray[np.int32]
    shares: NDArray[np.float32]
    changes: tuple[str, ...]

    def captions(self, class_names: Sequence[str]) -> list[str]:
        """What each example is: `cat`, or `70% cat + 30% dog` where two are mixed."""
        return [
            class_names[label]
            if share == 1
            else f"{share:.0%} {class_names[label]} + {1 - share:.0%} {class_names[other]}"
            for label, other, share in zip(self.labels, self.others, self.shares, strict=True)
        ]


def write(run: Run, step: int, path: Path) -> dict[str, Any]:
    """Writes a PNG of as many examples of a step's batch as a screen shows, whole or not at all.

    Args:
        run: the run.
        step: an update of it, from 1 on.
        path: the file; one that is there is replaced.

    Returns:
        What it shows, as JSON values: file, step, examples, changes.

    Raises:
        UsageError: the examples are no images.
        DataError: an example cannot be read.
        JaxtrainError: the file cannot be written, see `atomic_write_bytes`.
    """
    if not is_image(run.image_shape):
        raise UsageError(
            f"--preview={path} shows images, but an example is {shape_text(run.image_shape)}; "
            "leave it out"
        )
    changed = _is_resized(run) or bool(run.config.data.augment.strip())
    layout = grid.Layout.of(run.image_shape, pictures=2 if changed else 1, lines=1)
    shown = examples(run, step, min(layout.columns * layout.rows, run.config.train.batch_size))
    heading = [
        f"step {step:,} of {run.plan.total_steps:,}: {len(shown.labels):,} of its "
        f"{run.config.train.batch_size:,} examples",
        f"left: as in evaluation; right: as trained on, by {' and '.join(shown.changes)}"
        if shown.changes
        else "trained on as they are: data.augment is empty",
    ]
    pictures = [shown.before, shown.after] if shown.changes else [shown.after]
    captions = [(name,) for name in shown.captions(run.dataset.class_names)]
    content = grid.png(layout, heading, captions, zip(*pictures, strict=True))
    atomic_write_bytes(behind_links(path), content)
    return {
        "file": str(path),
        "step": step,
        "examples": len(shown.labels),
        "changes": list(shown.changes),
    }


def _is_resized(run: Run) -> bool:
    """Whether it trains on other parts of its images, or at another size, than it evaluates."""
    return run.dataset.train.random or run.config.data.eval_image_size is not None


def examples(run: Run, step: int, count: int) -> Examples:
    """The first rows of a step's batch, with the very changes that training makes.

    Args:
        run: the run.
        step: an update of it, from 1 on.
        count: number of rows, at most a batch; fewer are taken of very large images.

    Raises:
        DataError: an example cannot be read.
    """
    config, split, augment = run.config.data, run.dataset.train, run.fixed.augment
    count = max(1, min(count, _MOST_PIXELS // math.prod(split.image_shape)))
    read = -(-count // augment.together) * augment.together
    indices = run.sampler.indices(step)[:read]
    image = unit_interval(jnp.asarray(split.read(indices, run.sampler.row_seeds(step)[:read])))
    before, changes = image, []
    if _is_resized(run):
        middle = data.open_split(config, config.train_split, run.dataset.class_names)
        before = unit_interval(jnp.asarray(middle.read(indices)))
    if split.random:
        changes.append(f"data.crop={config.crop}")
    if config.eval_image_size is not None:
        changes.append(f"data.image_size={'x'.join(map(str, split.image_shape[:2]))}")
    if config.augment.strip():
        changes.append(f"data.augment={config.augment.strip()}")
    key = step_key(run.config.seed, step, "augment")
    row = jnp.arange(read, dtype=jnp.int32)

    @jax.jit
    def change(image: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        return augment.mix(key, augment(key, image, row), row, jnp.ones(read, bool))

    after, share = change(image)
    label = split.labels[indices]
    return Examples(
        before=np.asarray(before)[:count],
        after=np.asarray(after)[:count],
        labels=label[:count],
        others=label[:count] if share is None else np.asarray(partners(jnp.asarray(label)))[:count],
        shares=np.ones(count, np.float32) if share is None else np.asarray(share)[:count],
        changes=tuple(changes),
    )
