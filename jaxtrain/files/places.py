"""Where a run may lie: in a local folder, or in a bucket as `gs://BUCKET/RUN`.

`pathlib` knows no buckets, so what names one is an `etils.epath` path there, which has the same
methods. That and the bucket's client are imported only where a bucket is named.
"""

import contextlib
import os
import pathlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from jaxtrain.errors import JaxtrainError, UsageError, one_line

if TYPE_CHECKING:
    from etils import epath

    AnyPath: TypeAlias = pathlib.Path | epath.Path
else:
    AnyPath = pathlib.PurePath

# Or epath would import TensorFlow where that is installed, and read buckets by it. It looks once,
# at the first path that anyone asks it for.
os.environ.setdefault("EPATH_USE_TF", "false")

# What `gs://bucket/run` looks like, also after `pathlib` took one of its slashes.
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
BUCKET = re.compile(r"gs:/+(?P<place>.*)")


def is_bucket(path: str | AnyPath) -> bool:
    """Whether `path` names a place in a bucket."""
    return BUCKET.match(str(path)) is not None


def place(path: str | AnyPath) -> AnyPath:
    """The path that a text names.

    Args:
        path: a local path, or `gs://BUCKET/...`, whose bucket is asked whether it is there.

    Raises:
        UsageError: another scheme; or the bucket is not there or not to be reached within seconds,
            there are no credentials for it, or the extra `gcs` is not installed.
    """
    if not SCHEME.match(str(path)):
        return pathlib.Path(path)
    found = BUCKET.match(str(path))
    if found is None:
        raise UsageError(f"{path} must be a local folder, or one in a bucket: gs://BUCKET/RUN")
    # Heavy, and an extra: only who names a bucket needs it.
    from jaxtrain.files.bucket import connect  # noqa: PLC0415

    return connect(found["place"])


def behind_links(path: pathlib.Path) -> pathlib.Path:
    """Where a file lies: what is written there leaves a link to it a link."""
    return pathlib.Path(os.path.realpath(path))


def absolute(path: AnyPath) -> AnyPath:
    """`path.absolute()`; a place in a bucket is that already, which epath does not know."""
    return path if is_bucket(path) else path.absolute()


@contextlib.contextmanager
def explained(path: AnyPath) -> Iterator[None]:
    """Says in one line what a bucket's client raises inside; a local disk's errors pass.

    Raises:
        UsageError: `path` is in a bucket, and cannot be read.
    """
    try:
        yield
    except (JaxtrainError, FileNotFoundError):
        raise
    except Exception as error:  # each of its layers has its own
        if not is_bucket(path):
            raise
        name = type(error).__name__
        raise UsageError(f"cannot read {path}: {name}: {one_line(error)[:200]}") from error
