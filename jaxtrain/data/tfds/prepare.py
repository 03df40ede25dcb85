"""Downloads and prepares a data set, one process at a time."""

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import tensorflow_datasets as tfds

from jaxtrain.data.tfds.folders import Wanted, absent
from jaxtrain.errors import UsageError, one_line

_HALF: Final = 250


def prepare(wanted: Wanted) -> Path:
    """Downloads and prepares a data set unless it is there; returns the folder of its version.

    It is written as array_record, which has random access of its own and, unlike tfrecord, can be
    written without TensorFlow. Many data sets need TensorFlow all the same to be prepared, such as
    mnist and cifar10, whose images are arrays to be encoded: where it is missing, the error says
    so. Reading never needs it.

    While one process prepares, others on the same data_dir wait for it. What TensorFlow Datasets
    says, and shows of its progress, goes to stderr.

    Raises:
        UsageError: there is no such data set, it cannot be fetched or written, or it needs a
            package that is not there.
    """
    version = {} if wanted.version is None else {"version": wanted.version}
    with _as_usage_error(wanted), contextlib.redirect_stdout(sys.stderr):  # Stdout is for results.
        builder = tfds.builder(wanted.full_name, data_dir=wanted.data_dir, **version)
    with _alone(wanted), _as_usage_error(wanted), contextlib.redirect_stdout(sys.stderr):
        builder.download_and_prepare(
            # The bucket of prepared data sets has tfrecord alone.
            download_config=tfds.download.DownloadConfig(try_download_gcs=False),
            file_format="array_record",
        )
    return Path(builder.data_dir)


@contextlib.contextmanager
def _as_usage_error(wanted: Wanted) -> Iterator[None]:
    """Says what is wrong in one line; what builders raise is theirs to choose."""
    try:
        yield
    except tfds.core.DatasetNotFoundError as error:
        raise absent(wanted) from error
    except ImportError as error:
        said = (str(error) or repr(error)).splitlines()[-1]  # Those before may hold an example.
        raise UsageError(
            f"preparing {wanted.full_name} needs a package: {said}; "
            "install it and run the same command again, or prepare the data set on another machine "
            f"and copy it to {wanted.folder}"
        ) from error
    except Exception as error:
        raise UsageError(
            f"{wanted.full_name} cannot be downloaded and prepared in {wanted.data_dir}: "
            f"{_said(error)}; mend that, or prepare it on another machine and copy it there"
        ) from error


def _said(error: Exception) -> str:
    """An error in one line; both ends of a long one, which may hold a whole example."""
    said = one_line(error)
    return said if len(said) <= 2 * _HALF else f"{said[:_HALF]} ... {said[-_HALF:]}"


@contextlib.contextmanager
def _alone(wanted: Wanted) -> Iterator[None]:
    """Waits until no other process prepares this data set; a crash leaves no lock behind."""
    try:
        wanted.data_dir.mkdir(parents=True, exist_ok=True)
        lock = os.open(wanted.data_dir / f".jaxtrain-{wanted.name}.lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise UsageError(
            f"cannot write into {wanted.data_dir}: {error.strerror}; set data.path to a folder "
            f"that is writable, to prepare {wanted.full_name} there"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
