"""Downloads and prepares a data set, one process at a time."""

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import tensorflow_datasets as tfds

from jaxtrain.data.tfds.folders import Wanted, absent, find
from jaxtrain.errors import UsageError

_ERROR_LENGTH: Final = 500


def prepare(wanted: Wanted) -> Path:
    """Downloads and prepares a data set unless it is there; returns the folder of its version.

    It is written as array_record: tfrecord can only be written by TensorFlow, and must be read
    once as a whole to know where its records are. Many data sets need TensorFlow all the same to
    be prepared, those that hand over arrays rather than image files among them (mnist, cifar10):
    where it is missing, the error says so. Reading never needs it.

    While one process prepares, others on the same data_dir wait for it. What TensorFlow Datasets
    says and shows of its progress goes to stderr.

    Raises:
        UsageError: there is no such data set, it cannot be fetched or written, or it needs a
            package that is not there.
    """
    with _alone(wanted):
        return find(wanted) or _prepare(wanted)


def _prepare(wanted: Wanted) -> Path:
    version = {} if wanted.version is None else {"version": wanted.version}
    try:
        # Stdout is for results.
        with contextlib.redirect_stdout(sys.stderr):
            builder = tfds.builder(wanted.full_name, data_dir=wanted.data_dir, **version)
            builder.download_and_prepare(
                # The bucket of prepared data sets has tfrecord alone.
                download_config=tfds.download.DownloadConfig(try_download_gcs=False),
                file_format="array_record",
            )
    except tfds.core.DatasetNotFoundError as error:
        raise absent(wanted) from error
    except ImportError as error:
        missing = error.name or "a package"
        raise UsageError(
            f"preparing {wanted.full_name} needs {missing}, which is not installed: install it and "
            f"run the same command again, or prepare the data set on another machine and copy it "
            f"to {wanted.folder}"
        ) from error
    # What builders raise is theirs to choose.
    except Exception as error:
        said = " ".join(str(error).split())[:_ERROR_LENGTH] or repr(error)
        raise UsageError(
            f"{wanted.full_name} could not be downloaded and prepared in {wanted.data_dir}: {said}"
        ) from error
    return Path(builder.data_dir)


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
