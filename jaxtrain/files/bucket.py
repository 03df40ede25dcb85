"""Objects in a bucket, through Google's own client.

A write of one object is atomic there: readers find the old one or the new one.
"""

import datetime
import functools
import os
import queue
import threading
from typing import Any, NamedTuple

from jaxtrain.errors import CheckpointError, UsageError, one_line
from jaxtrain.files.places import BUCKET, AnyPath

CONNECT_SECONDS = 20
REQUEST_SECONDS = (5, 10)
WRITE_SECONDS = 60


class Conflict(Exception):  # noqa: N818 - it is no error
    """The object is not of the generation that it was to have."""


class Stored(NamedTuple):
    """An object's content, generation, and the time of its last write by the service's clock."""

    content: bytes
    generation: int
    updated: datetime.datetime


def connect(text: str) -> AnyPath:
    """The place `BUCKET/...` after `gs://`, once its bucket has answered.

    Raises:
        UsageError: see `places.place`.
    """
    name, _, inside = text.partition("/")
    inside = inside.strip("/")
    if not name or not inside:
        raise UsageError(f"gs://{text} names no folder in a bucket; give gs://BUCKET/RUN")
    _prepare()
    try:
        import gcsfs  # noqa: F401, PLC0415 - by which epath and Orbax reach a bucket
        from etils import epath  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            f"gs://{name} cannot be used: the extra gcs is not installed ({one_line(error)}); "
            "run pip install 'jaxtrain[gcs]'"
        ) from error
    _configure()
    _bucket(name)
    return epath.Path(f"gs://{name}/{inside}")


def read(path: AnyPath) -> Stored | None:
    """The object at `path`; None if there is none.

    Raises:
        Exception: what Google's client says; `explain` has words for it.
    """
    options = {"timeout": REQUEST_SECONDS}
    bucket, name = _split(path)
    while True:
        blob = bucket.get_blob(name, **options)
        if blob is None:
            return None
        generation = blob.generation
        try:
            content = blob.download_as_bytes(if_generation_match=generation, **options)
        except _exceptions().ClientError as error:  # written or deleted in between
            if error.code not in (404, 412):
                raise
        else:
            return Stored(content, generation, blob.updated)


def write(path: AnyPath, content: bytes, generation: int | None = None) -> Stored:
    """Writes an object.

    Args:
        path: the object's place.
        content: its content.
        generation: the one to replace, 0 for none; None: whatever is there. Where this is given,
            one try is made.

    Raises:
        Conflict: the object is of another generation.
        Exception: as for `read`.
    """
    from google.cloud.storage.retry import DEFAULT_RETRY  # noqa: PLC0415

    bucket, name = _split(path)
    blob = bucket.blob(name)
    try:
        blob.upload_from_string(
            content,
            content_type="application/octet-stream",
            if_generation_match=generation,
            timeout=REQUEST_SECONDS if generation is not None else (5, WRITE_SECONDS),
            retry=None if generation is not None else DEFAULT_RETRY.with_timeout(WRITE_SECONDS),
        )
    except _exceptions().PreconditionFailed as error:
        raise Conflict(str(path)) from error
    return Stored(content, blob.generation, blob.updated)


def delete(path: AnyPath, generation: int | None = None) -> None:
    """Deletes an object, if it is there and of this generation.

    Raises:
        Exception: as for `read`.
    """
    bucket, name = _split(path)
    try:
        bucket.blob(name).delete(if_generation_match=generation, timeout=REQUEST_SECONDS)
    except (_exceptions().NotFound, _exceptions().PreconditionFailed):
        pass


def move(path: AnyPath, to: AnyPath) -> None:
    """Moves a folder within its bucket: copies every object there, then deletes the old ones.

    Raises:
        Exception: as for `read`; some objects may be at both places then.
    """
    bucket, old = _split(path)
    _, new = _split(to)
    blobs = list(bucket.list_blobs(prefix=f"{old}/"))
    for blob in blobs:
        copy = bucket.blob(new + blob.name.removeprefix(old))
        token, *_ = copy.rewrite(blob)
        while token is not None:  # a large one takes several calls
            token, *_ = copy.rewrite(blob, token=token)
    for blob in blobs:
        blob.delete()


def write_whole(path: AnyPath, content: bytes) -> None:
    """Writes an object for a run.

    Raises:
        CheckpointError: it cannot be written.
    """
    try:
        write(path, content)
    except Exception as error:  # requests, urllib3 and Google's layers each have their own
        raise CheckpointError(
            f"cannot write {path}: {explain(error)}; run the same command again"
        ) from error


def explain(error: BaseException) -> str:
    """What a failed request says, on one short line; each layer packs a network's error anew."""
    error = getattr(error, "cause", None) or error  # of a RetryError
    is_network = isinstance(error, OSError)
    while is_network and (inner := error.__cause__ or error.__context__):
        error = inner
    return f"{type(error).__name__}: {one_line(error)[:200]}"


def _prepare() -> None:
    """What the libraries read when they are imported."""
    # Where there is no Google machine around, each try to ask it for credentials takes 3 s.
    os.environ.setdefault("GCE_METADATA_DETECT_RETRIES", "1")
    if os.environ.get("STORAGE_EMULATOR_HOST"):
        # For what kind of bucket it is gcsfs asks a second service, by gRPC.
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")


def _configure() -> None:
    """The options of gcsfs: Orbax writes past it too, so it must not remember listings."""
    from fsspec.config import conf  # noqa: PLC0415

    options = conf.setdefault("gcs", {})
    options.setdefault("use_listings_cache", False)
    if os.environ.get("STORAGE_EMULATOR_HOST"):
        options.setdefault("token", "anon")


@functools.cache
def _bucket(name: str) -> Any:
    """The client's bucket, which is there and answers.

    Google's libraries wait for minutes in some of their layers, so the time is taken here.
    """
    answers: queue.Queue[Any] = queue.Queue()

    def ask() -> None:
        from google.cloud import storage  # noqa: PLC0415

        try:
            # As Orbax makes it, so that what it lacks is said now.
            client = storage.Client()
            answers.put(client.get_bucket(name, timeout=REQUEST_SECONDS, retry=None))
        except Exception as error:  # as in `write_whole`
            answers.put(error)

    threading.Thread(target=ask, daemon=True, name="connect").start()
    try:
        answer = answers.get(timeout=CONNECT_SECONDS)
    except queue.Empty:
        raise UsageError(
            f"gs://{name} cannot be reached: no answer in {CONNECT_SECONDS} s; check the network"
        ) from None
    if isinstance(answer, Exception):
        raise UsageError(f"gs://{name} {_reason(answer)}") from answer
    return answer


def _reason(error: Exception) -> str:
    """Why a bucket cannot be used, and what to do."""
    from google.auth import exceptions as auth  # noqa: PLC0415

    if isinstance(error, auth.DefaultCredentialsError | auth.RefreshError):
        return (
            f"cannot be used: no credentials ({one_line(error).partition('. ')[0][:150]}); run "
            "gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS"
        )
    if isinstance(error, _exceptions().NotFound):
        return "does not exist; make it with gcloud storage buckets create, or name another"
    if isinstance(error, _exceptions().Unauthorized | _exceptions().Forbidden):
        return (
            f"refuses these credentials ({one_line(error)[:150]}); run gcloud auth "
            "application-default login, or have storage.buckets.get and roles/storage.objectUser "
            "on it granted"
        )
    if type(error) is OSError:  # as it says that it found no project
        return f"cannot be used: {one_line(error)[:150]}; set GOOGLE_CLOUD_PROJECT"
    return f"cannot be reached: {explain(error)}; check the network"


def _split(path: AnyPath) -> tuple[Any, str]:
    found = BUCKET.match(str(path))
    assert found is not None
    name, _, inside = found["place"].partition("/")
    return _bucket(name), inside


def _exceptions() -> Any:
    from google.api_core import exceptions  # noqa: PLC0415

    return exceptions
