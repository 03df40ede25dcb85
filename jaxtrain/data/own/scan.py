"""Files decoded to find those that cannot be: opening is not enough, half a JPEG opens."""

import hashlib
import os
from collections.abc import Sequence
from concurrent import futures
from pathlib import Path
from typing import Final

from jaxtrain.data.decode import decode
from jaxtrain.data.listing import content_of
from jaxtrain.data.own.known import DIGEST_BYTES, Known, Result, Seen
from jaxtrain.data.split import Progress
from jaxtrain.data.threads import usable_cpus
from jaxtrain.errors import DataError

_CHUNK: Final = 16
_CHANNELS: Final = 3  # whether a file can be decoded does not depend on them
WHAT: Final = "decode"


def scan_files(root: Path, paths: Sequence[str], progress: Progress) -> list[Result]:
    """Reads and decodes files, in as many threads as this process has CPUs.

    What is found is kept, beside the files if it can be, so that only new and changed ones are
    read the next time; see `Known`.

    Args:
        root: the folder that paths count from.
        paths: the files.
        progress: told how many are done.

    Returns:
        The result of each file.
    """
    known = Known(root)
    chunks = [paths[start : start + _CHUNK] for start in range(0, len(paths), _CHUNK)]
    pool = futures.ThreadPoolExecutor(usable_cpus())
    results: list[Result] = []
    try:
        for chunk in pool.map(lambda chunk: [_one(known, path) for path in chunk], chunks):
            results += chunk
            known.keep_now_and_then()
            progress(WHAT, len(results), len(paths))
    finally:
        pool.shutdown(cancel_futures=True)
        known.keep()
    return results


def _one(known: Known, path: str) -> Result:
    where = os.path.join(known.root, path)
    try:
        status = os.stat(where)
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        return Result(f"the file cannot be read: {said}", b"")
    found = known.get(path, status)
    if found is not None:
        return found
    try:
        content = content_of(where)
    except DataError as error:
        return Result(str(error), b"")  # not kept: the file may be there or be readable again
    try:
        decode(content, _CHANNELS)
        result = Result(None, hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest())
    except DataError as error:
        result = Result(str(error), b"")
    known.add(path, Seen(status.st_size, status.st_mtime_ns, result))
    return result
