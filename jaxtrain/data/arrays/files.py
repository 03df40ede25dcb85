"""The arrays of an `.npz` file, or of a folder of `.npy` files."""

import abc
import stat
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxtrain.errors import UsageError, one_line


class Arrays(abc.ABC):
    """Arrays by name; nothing is unpickled.

    Attributes:
        path: the file or the folder.
        names: of the arrays, sorted.
    """

    path: Path
    names: tuple[str, ...]

    @abc.abstractmethod
    def where(self, name: str) -> str:
        """Where an array is, for messages."""

    @abc.abstractmethod
    def _read(self, name: str) -> NDArray[Any]: ...

    def read(self, name: str) -> NDArray[Any]:
        """An array, memory-mapped if it is a file of its own.

        Raises:
            UsageError: it is damaged, no array, or would have to be unpickled.
        """
        try:
            return self._read(name)
        except UsageError:
            raise
        except Exception as error:  # NumPy has Python parse the header, and zipfile unpack
            said = one_line(error)
            if "Python objects" in said or "Object arrays" in said:
                raise UsageError(
                    f"{self.where(name)} holds Python objects, which are not read, as they may run "
                    "code; save numbers, as in x.astype('float32'), or names as y.astype(str)"
                ) from error
            raise UsageError(f"{self.where(name)} cannot be read: {said}") from error


class _Archive(Arrays):
    """The arrays of an `.npz` file, each read into memory."""

    def __init__(self, path: Path):
        self.path = path
        try:
            with np.load(path, allow_pickle=False) as archive:
                self.names = tuple(sorted(archive.files))
        except Exception as error:
            raise UsageError(f"{path} is no whole .npz file: {one_line(error)}") from error

    def where(self, name: str) -> str:
        return f"{name} in {self.path}"

    def _read(self, name: str) -> NDArray[Any]:
        with np.load(self.path, allow_pickle=False) as archive:
            array: NDArray[Any] | bytes = archive[name]
        if isinstance(array, bytes):  # NumPy's answer if the member is of another format
            raise UsageError(
                f"{self.where(name)} is no .npy array, but {len(array):,} bytes of something else; "
                "save the arrays as in np.savez(path, x_train=x, y_train=y)"
            )
        return array


class _Folder(Arrays):
    """The arrays of the `.npy` files of a folder, memory-mapped."""

    def __init__(self, path: Path):
        self.path = path
        try:
            files = [
                file
                for file in path.iterdir()
                if file.suffix.lower() == ".npy" and not file.name.startswith(".")
            ]
        except OSError as error:
            raise UsageError(f"data.path={path} cannot be read: {error.strerror}") from error
        self._files: dict[str, Path] = {}
        for file in sorted(files):
            if (other := self._files.setdefault(file.stem, file)) != file:
                raise UsageError(
                    f"{path} has two files of an array {file.stem}, {other.name} and {file.name}; "
                    "remove or rename one"
                )
        self.names = tuple(self._files)

    def where(self, name: str) -> str:
        return str(self._files[name])

    def _read(self, name: str) -> NDArray[Any]:
        file = self._files[name]
        if not stat.S_ISREG(file.stat().st_mode):  # opening a pipe may wait for ever
            raise UsageError(f"{file} is no regular file; copy the array into one")
        return np.asarray(np.load(file, allow_pickle=False, mmap_mode="r"))


def open_arrays(path: Path) -> Arrays:
    """The arrays of a path.

    Raises:
        UsageError: it is neither an `.npz` file nor a folder, or cannot be read, or of a folder
            two files are for one array.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return _Folder(path)
        if not stat.S_ISREG(mode):  # opening a pipe may wait for ever
            raise UsageError(f"data.path={path} is no regular file; copy the arrays into one")
        with path.open("rb") as file:
            is_archive = zipfile.is_zipfile(file)
    except OSError as error:
        raise UsageError(
            f"data.path={path} cannot be read: {error.strerror or error} (it counts from the "
            f"current folder, {Path.cwd()})"
        ) from error
    if not is_archive:
        raise UsageError(
            f"data.path={path} is neither a whole .npz file nor a folder of .npy files; save the "
            "arrays as in np.savez(path, x_train=x, y_train=y)"
        )
    return _Archive(path)
