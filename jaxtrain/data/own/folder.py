"""A folder of images: `<class>/**/image`, or that in a folder for each split."""

import collections
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from jaxtrain.data.decode import SUFFIXES
from jaxtrain.data.listing import files_in, suffix_of
from jaxtrain.data.own.found import SPLIT_NAMES, Found, Listed, identity, normal
from jaxtrain.errors import UsageError

_NAMED: Final = 5  # names in a message


def find_images(root: Path) -> Found:
    """Lists a folder of images, in which each class has a folder.

    The folders at the top are classes; or splits, with the classes below them, if one of them is
    called `train` (or `training`) and another one `val` (`valid`, `validation`, `dev`) or `test`
    (`testing`), or there is no other. Images lie at any depth below their class. Links are
    followed; what is hidden is not looked at.

    Args:
        root: the folder.

    Raises:
        UsageError: it cannot be read, has no images, or has none in folders of classes.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(root) if _is_shown_folder(entry))
    except OSError as error:
        raise UsageError(
            f"data.path={root} cannot be read: {error.strerror} (it counts from the current "
            f"folder, {Path.cwd()}); give a folder that has a folder of images for each class"
        ) from error
    tops = _split_folders(root, names)
    notes = _Notes()
    if tops is None:
        splits = {"train": _listed(root, "", notes)}
    else:
        splits = {split: _listed(root, top, notes) for split, top in tops.items()}
        others = sorted(set(names) - set(tops.values()))
        if others:
            notes.lines.append(f"left out: {_some(others)} beside the folders of splits")
    if not any(listed.paths for listed in splits.values()):
        raise _no_images(root, names, notes)
    splits = {split: listed for split, listed in splits.items() if listed.paths}
    return Found(root, splits, numbered=False, origin=str(root), notes=notes.all())


class _Notes:
    """What is left out of a folder."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.no_images: collections.Counter[str] = collections.Counter()
        self.loose = 0  # images that lie in no class's folder

    def all(self) -> list[str]:
        lines = list(self.lines)
        if self.no_images:
            counts = ", ".join(
                f"{count:,} {suffix}" for suffix, count in sorted(self.no_images.items())
            )
            lines.append(f"left out: {counts}, no images by their names")
        if self.loose:
            lines.append(f"left out: {self.loose:,} images in no class's folder")
        return lines


def _is_shown_folder(entry: "os.DirEntry[str]") -> bool:
    return not entry.name.startswith(".") and entry.is_dir()


def _split_folders(root: Path, names: Iterable[str]) -> Mapping[str, str] | None:
    """Split to the name of its folder, in the order train, val, test; None: they are classes."""
    known: dict[str, list[str]] = collections.defaultdict(list)
    others = 0
    for name in names:
        split = SPLIT_NAMES.get(name.lower())
        if split is None:
            others += 1
        else:
            known[split].append(name)
    if "train" not in known or (len(known) == 1 and others):
        return None
    for split, folders in known.items():
        if len(folders) > 1:
            raise UsageError(
                f"{root} has {len(folders)} folders for the split {split}: {', '.join(folders)}; "
                "keep one"
            )
    order = dict.fromkeys(SPLIT_NAMES.values())
    return {split: known[split][0] for split in order if split in known}


def _listed(root: Path, top: str, notes: _Notes) -> Listed:
    """The images of the classes in a folder of the root."""
    start = os.path.join(root, top)
    found: list[tuple[bytes, str, str]] = []
    classes = set()
    with os.scandir(start) as entries:
        for entry in entries:
            if _is_shown_folder(entry):
                classes.add(entry.name)
            elif not entry.name.startswith("."):
                is_image = suffix_of(entry.name) in SUFFIXES
                notes.loose += is_image
                if not is_image:
                    notes.no_images[suffix_of(entry.name) or "without suffix"] += 1
    empty = []
    for folder in sorted(classes):
        name = _class_name(root, folder)
        before = len(found)
        for path in files_in(os.path.join(start, folder)):
            suffix = suffix_of(path)
            if suffix in SUFFIXES:
                relative = os.path.relpath(path, root)
                found.append((identity(relative), relative, name))
            else:
                notes.no_images[suffix or "without suffix"] += 1
        if len(found) == before:
            empty.append(os.path.join(top, folder))
    if empty:
        notes.lines.append(f"no class: {_some(empty)}, without images")
    found.sort()
    return Listed([path for _, path, _ in found], [name for _, _, name in found])


def _class_name(root: Path, folder: str) -> str:
    try:
        folder.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"the name of the class folder {os.fsencode(folder)!r} in {root} is not UTF-8; "
            "rename it"
        ) from None
    return normal(folder)


def _no_images(root: Path, names: list[str], notes: _Notes) -> UsageError:
    if notes.loose:
        return UsageError(
            f"data.path={root} has {notes.loose:,} images, but no folder for each class; sort them "
            "into one folder a class, or list them with labels in a CSV file for data.source=csv"
        )
    suffixes = " ".join(sorted(SUFFIXES))
    there = f"its folders: {_some(names)}" if names else "it has no folders"
    return UsageError(f"data.path={root} has no images ({suffixes}) in folders; {there}")


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
