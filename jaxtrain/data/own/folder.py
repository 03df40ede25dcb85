"""A folder of images: `<class>/**/image`, or that in a folder for each split."""

import collections
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from jaxtrain.data.decode import SUFFIXES
from jaxtrain.data.listing import files_in, suffix_of
from jaxtrain.data.own.found import SPLIT_NAMES, Found, Listed, identity, normal
from jaxtrain.errors import UsageError, some

# Images of kinds that are not read.
_NOT_READ: Final = frozenset(
    {".arw", ".avif", ".cr2", ".cr3", ".dng", ".heic", ".heif", ".jp2", ".jxl", ".nef", ".svg"}
)


def find_images(root: Path) -> Found:
    """Lists a folder of images, in which each class has a folder.

    The folders at the top are classes; or splits, with the classes below them, if they are called
    `train` (or `training`), `val` (`valid`, `validation`, `dev`) and `test` (`testing`). Where
    there are others beside these they are splits if `train` holds folders and no images. Images lie
    at any depth below their class. Links are followed; what is hidden is not looked at.

    Args:
        root: the folder.

    Raises:
        UsageError: it cannot be read, has no images, or has none in folders of classes.
    """
    names = _folders(_entries(root))
    tops = _split_folders(root, names)
    notes = _Notes()
    if tops is None:
        splits = {"train": _listed(root, "", notes)}
    else:
        splits = {split: _listed(root, top, notes) for split, top in tops.items()}
        others = sorted(set(names) - set(tops.values()))
        if others:
            notes.lines.append(f"left out: {some(others)} beside the folders of splits")
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
        for what, suffixes in (
            ("no images by their names", set(self.no_images) - _NOT_READ),
            ("which are not read; convert them to JPEG or PNG", _NOT_READ & set(self.no_images)),
        ):
            counts = [f"{self.no_images[suffix]:,} {suffix}" for suffix in sorted(suffixes)]
            if counts:
                lines.append(f"left out: {', '.join(counts)}, {what}")
        if self.loose:
            lines.append(
                f"left out: {self.loose:,} images in no class's folder, but beside those folders"
            )
        return lines


def _entries(folder: str | Path) -> list["os.DirEntry[str]"]:
    """What is not hidden in a folder, sorted."""
    try:
        os.stat(os.path.join(folder, os.curdir))  # or no folder in it could be told from a file
        with os.scandir(folder) as entries:
            return sorted((each for each in entries if each.name[0] != "."), key=lambda e: e.name)
    except OSError as error:
        raise UsageError(
            f"data.path: {folder} cannot be read: {error.strerror} (it counts from the current "
            f"folder, {Path.cwd()}); give a folder that has a folder of images for each class"
        ) from error


def _folders(entries: Iterable["os.DirEntry[str]"]) -> list[str]:
    return [each.name for each in entries if os.path.isdir(each.path)]  # no link that leads nowhere


def _split_folders(root: Path, names: list[str]) -> Mapping[str, str] | None:
    """Split to the name of its folder, in the order train, val, test; None: they are classes."""
    known: dict[str, list[str]] = collections.defaultdict(list)
    for name in names:
        if (split := SPLIT_NAMES.get(name.lower())) is not None:
            known[split].append(name)
    count = sum(map(len, known.values()))
    if not count or (count < len(names) and not _holds_classes(root, known.get("train", []))):
        return None
    for split, folders in known.items():
        if len(folders) > 1:
            raise UsageError(
                f"{root} has {len(folders)} folders for the split {split}: {', '.join(folders)}; "
                "keep one"
            )
    order = dict.fromkeys(SPLIT_NAMES.values())
    return {split: known[split][0] for split in order if split in known}


def _holds_classes(root: Path, train: list[str]) -> bool:
    """Whether a folder called `train` has folders, and no images, as that of a split has."""
    if len(train) != 1:
        return bool(train)
    entries = _entries(root / train[0])
    images = any(suffix_of(each.name) in SUFFIXES for each in entries)
    return bool(_folders(entries)) and not images


def _listed(root: Path, top: str, notes: _Notes) -> Listed:
    """The images of the classes in a folder of the root."""
    start = os.path.join(root, top)
    found: list[tuple[bytes, str, str]] = []
    entries = _entries(start)
    classes = _folders(entries)
    for entry in entries:
        if entry.name not in classes:
            is_image = suffix_of(entry.name) in SUFFIXES
            notes.loose += is_image
            if not is_image:
                notes.no_images[suffix_of(entry.name) or "without suffix"] += 1
    empty = []
    for folder in classes:
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
        notes.lines.append(f"no class: {some(empty)}, without images")
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
    there = f"its folders: {some(names)}" if names else "it has no folders"
    return UsageError(f"data.path={root} has no images ({suffixes}) in folders; {there}")
