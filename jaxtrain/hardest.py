"""The hardest examples of a split, as a table and as a picture."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxtrain import data, grid
from jaxtrain.data.examples import is_image
from jaxtrain.evaluation import Results, place_of
from jaxtrain.report.rows import csv_lines, float32

_HEADER: Final = ["rank", "path", "label", "class", "probability", "loss", "gradient_norm"]

# Examples of a picture, at most: more of them make a file that few programs show.
_MOST_SHOWN: Final = 256


@dataclasses.dataclass(frozen=True)
class Hardest:
    """Some examples of a split, the hardest first.

    Attributes:
        by: what says how hard one is: `loss`, or `gradient` for the norm of its loss's gradient.
        indices: int64 `[n]`, which examples.
        results: those of `Evaluator.results` for these examples.
        norms: float32 `[n]`, of the gradients; None: of such a model there are none.
    """

    by: str
    indices: NDArray[np.int64]
    results: Results
    norms: NDArray[np.float32] | None


def find(
    results: Results,
    count: int,
    by: str,
    norms: Callable[[NDArray[np.int64]], NDArray[np.float32]] | None,
) -> Hardest:
    """The hardest examples; of equals the first, and what is not finite before all others.

    Args:
        results: of all examples, in data order.
        count: how many to find; of fewer examples all.
        by: as in `Hardest`.
        norms: gives those of some examples; called once, for all of them only if `by` needs it.
    """
    if by == "loss":
        indices = _hardest_first(results["loss"])[:count]
        found = None if norms is None else norms(indices)
    else:
        assert norms is not None, "of exported models only losses are known"
        every = norms(np.arange(len(results["loss"])))
        indices = _hardest_first(every)[:count]
        found = every[indices]
    return Hardest(by, indices, {name: of[indices] for name, of in results.items()}, found)


def _hardest_first(values: NDArray[np.float32]) -> NDArray[np.int64]:
    known = np.where(np.isfinite(values), values, np.inf)
    return np.argsort(-known, kind="stable")


def files(
    hardest: Hardest, split: data.Split, class_names: Sequence[str], of: str
) -> dict[str, bytes]:
    """The contents of files for a person.

    `table` is CSV as `eval --predictions` writes it, of a row an example. Its columns: `rank` from
    1 on, `path` (the file, or as `test[3]`), `label` (the true class), `class` and `probability`
    (of the one that the model says), `loss`, and `gradient_norm`, empty where there is none.

    `picture` is a PNG of the first of them, each below its classes and numbers; not there where
    examples are no images.

    Args:
        hardest: the examples.
        split: where they are.
        class_names: one name a class, in label order.
        of: what was evaluated, in words.
    """
    contents = {"table": _table(hardest, split, class_names)}
    if is_image(split.image_shape):
        contents["picture"] = _picture(hardest, split, class_names, of)
    return contents


def _table(hardest: Hardest, split: data.Split, class_names: Sequence[str]) -> bytes:
    rows = [_HEADER]
    for at, index in enumerate(hardest.indices.tolist()):
        numbers = [hardest.results[name][at] for name in ("probability", "loss")]
        numbers += [] if hardest.norms is None else [hardest.norms[at]]
        texts = [repr(float32(number)) for number in numbers]
        names = _classes(hardest, at, split, class_names)
        rows.append([str(at + 1), place_of(split, index), *names, *texts])
        rows[-1] += [""] * (len(_HEADER) - len(rows[-1]))
    return csv_lines(rows).encode()


def _picture(hardest: Hardest, split: data.Split, class_names: Sequence[str], of: str) -> bytes:
    indices = hardest.indices[:_MOST_SHOWN]
    what = {"loss": "highest loss", "gradient": "largest gradient of the loss"}[hardest.by]
    heading = [
        f"{of}: the {len(indices):,} of {split.size:,} examples of {split.name!r} with the {what}",
        "each: its rank and true class; the class that the model says, its probability; the loss"
        + (" and the norm of its gradient" if hardest.by == "gradient" else ""),
    ]
    captions = [_caption(hardest, at, split, class_names) for at in range(len(indices))]
    layout = grid.Layout.of(split.image_shape, pictures=1, lines=len(captions[0]))
    return grid.png(layout, heading, captions, _images(split, indices))


def _images(split: data.Split, indices: NDArray[np.int64]) -> Iterator[list[NDArray[np.float32]]]:
    """One at a time, as they may be large."""
    for index in indices:
        (image,) = split.read(np.array([index]))
        yield [image.astype(np.float32) / np.float32(255)]


def _caption(
    hardest: Hardest, at: int, split: data.Split, class_names: Sequence[str]
) -> tuple[str, ...]:
    label, prediction = _classes(hardest, at, split, class_names)
    probability, loss = (hardest.results[name][at] for name in ("probability", "loss"))
    numbers = f"{probability:.0%}, loss {loss:.4g}"  # not behind a name, which may be long
    lines = (f"{at + 1}. {label}", f"-> {prediction}", numbers)
    if hardest.by == "loss" or hardest.norms is None:
        return lines
    return (*lines, f"gradient {hardest.norms[at]:.4g}")


def _classes(
    hardest: Hardest, at: int, split: data.Split, class_names: Sequence[str]
) -> tuple[str, str]:
    """The true class of an example and the one that the model says."""
    label, prediction = split.labels[hardest.indices[at]], hardest.results["prediction"][at]
    return class_names[label], class_names[prediction]
