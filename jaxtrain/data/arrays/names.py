"""What an array is for, by its name."""

import enum
import itertools
from collections.abc import Iterable
from typing import Final, NamedTuple

from jaxtrain.data.own.found import SPLIT_NAMES
from jaxtrain.errors import UsageError, some


class Role(enum.Enum):
    """What an array holds."""

    INPUTS = "images or features"
    LABELS = "labels"
    CLASS_NAMES = "class names"


class Part(NamedTuple):
    """What an array is for.

    Attributes:
        role: what it holds.
        split: `train`, `val` or `test`; None: its name does not say.
    """

    role: Role
    split: str | None


class Pair(NamedTuple):
    """The names of the arrays of a split.

    Attributes:
        inputs: images or features.
        labels: their labels.
    """

    inputs: str
    labels: str


# In lower case. Keras has x_train and y_train; MedMNIST train_images and train_labels;
# scikit-learn data, target and target_names; CIFAR label_names.
_ROLES: Final = {
    **dict.fromkeys(
        ("x", "image", "images", "img", "imgs", "data", "feature", "features", "input", "inputs"),
        Role.INPUTS,
    ),
    **dict.fromkeys(("y", "label", "labels", "target", "targets"), Role.LABELS),
}
_CLASS_NAMES: Final = ("class_names", "label_names", "target_names")
_SEPARATORS: Final = ("_", "-", ".", "/", " ", "")
PARTS: Final = {
    **{name: Part(role, None) for name, role in _ROLES.items()},
    **{name: Part(Role.CLASS_NAMES, None) for name in _CLASS_NAMES},
    **{
        separator.join(words): Part(role, split)
        for (name, role), (spelling, split), separator in itertools.product(
            _ROLES.items(), SPLIT_NAMES.items(), _SEPARATORS
        )
        for words in ((name, spelling), (spelling, name))
    },
}


class Named(NamedTuple):
    """The arrays of a place by what they are for.

    Attributes:
        pairs: those of each split, in the order train, val, test.
        class_names: the name of the array of class names, if there is one.
        unused: names of the others.
    """

    pairs: dict[str, Pair]
    class_names: str | None
    unused: list[str]


def by_role(names: Iterable[str], place: str) -> Named:
    """Finds the arrays of each split.

    A pair whose names say no split is `train`.

    Args:
        names: of all arrays.
        place: where they are, for messages.

    Raises:
        UsageError: two arrays are for one thing, or no inputs have labels.
    """
    names = list(names)
    found: dict[Part, str] = {}
    for name in names:
        part = PARTS.get(name.casefold())
        if part is None:
            continue
        if part in found:
            of_split = f" of split {part.split}" if part.split else ""
            raise UsageError(
                f"{place} has two arrays of {part.role.value}{of_split}, {found[part]} and {name}; "
                "remove or rename one"
            )
        found[part] = name
    splits = [None, *dict.fromkeys(SPLIT_NAMES.values())]
    pairs = {
        split: Pair(found[Part(Role.INPUTS, split)], found[Part(Role.LABELS, split)])
        for split in splits
        if {Part(Role.INPUTS, split), Part(Role.LABELS, split)} <= found.keys()
    }
    if not pairs:
        raise _none(names, found, place)
    if len(pairs) > 1 and None in pairs:
        pair, other = pairs[None], next(pairs[split] for split in pairs if split is not None)
        raise UsageError(
            f"{place} has {pair.inputs} and {pair.labels} of no split, beside {other.inputs} and "
            f"{other.labels}; name their split, or remove one of the pairs"
        )
    class_names = found.get(Part(Role.CLASS_NAMES, None))
    used = {class_names, *itertools.chain(*pairs.values())}
    return Named(
        {split or "train": pair for split, pair in pairs.items()},
        class_names,
        [name for name in names if name not in used],
    )


def _none(names: list[str], found: dict[Part, str], place: str) -> UsageError:
    """No pair: what there is, and what there should be."""
    there = some(names) or "nothing"
    alone = next((name for part, name in found.items() if part.role is Role.INPUTS), None)
    what = f"no labels for {alone}" if alone else "no pair of inputs and labels"
    return UsageError(
        f"{place} has {what}: it holds {there}; name them x_train and y_train (and x_test, y_test; "
        "or x_val, y_val), or images and labels, features and labels, data and target"
    )
