"""Splits as they are asked for: one by its name, or several with + between them."""

from collections.abc import Collection, Mapping

from jaxtrain.errors import UsageError


def parts_of(name: str) -> list[str]:
    """The splits of a text with + between them, each once, in its order."""
    return list(dict.fromkeys(part.strip() for part in name.split("+")))


def parts_there(name: str, there: Collection[str]) -> list[str]:
    """As `parts_of`, of the splits that there are.

    Where `val` would have been cut from a lone `train`, but there was too little for that, the two
    together are all that there is.
    """
    parts = parts_of(name)
    return ["train"] if set(there) == {"train"} and set(parts) == {"train", "val"} else parts


def cut_note(val_share: float) -> str:
    """What a person should know where a lone split `train` was cut; see `cut.val_rows`."""
    return f"no splits were found: about {val_share:.2g} of each class is the split val"


def no_split(
    part: str, there: Mapping[str, int], *, place: str, what: str, val_share: float
) -> UsageError:
    """The error for a split that is not there.

    Args:
        part: its name.
        there: how many examples each of the others has.
        place: where they are.
        what: what the examples are, in the plural.
        val_share: the share of a lone split `train` that becomes `val`, see `cut.val_rows`.
    """
    listed = ", ".join(f"{split} ({size:,} {what})" for split, size in there.items())
    fix = "and some of them together as in train+val"
    if part == "val" and set(there) == {"train"}:
        fix = (
            f"too few to cut data.val_share={val_share:g} from; raise it, or give more {what}; "
            "train+val is all of them"
        )
    return UsageError(f"there is no split {part!r} in {place}; its splits: {listed}, {fix}")
