"""Files read, and decoded to find bad ones: opening is not enough, half a JPEG opens."""

import os
from collections.abc import Sequence
from typing import Final

from jaxtrain.data.decode import decode
from jaxtrain.data.listing import content_of
from jaxtrain.data.own.known import Known, Result, Seen, digest_of, state_of
from jaxtrain.data.split import Progress
from jaxtrain.data.threads import workers
from jaxtrain.errors import DataError

_CHUNK: Final = 16
_CHANNELS: Final = 3  # whether a file can be decoded does not depend on them
READ: Final = "read"
DECODE: Final = "decode"


def look_at(
    known: Known, paths: Sequence[str], progress: Progress, *, decoded: bool
) -> list[Result]:
    """Reads files, in as many threads as this process has CPUs.

    Only those are read that are not known, or have changed since.

    Args:
        known: what was found before; what is found now is kept there.
        paths: the files, from the root of `known`.
        progress: told how many are done.
        decoded: whether to decode them too.

    Returns:
        The result of each file.
    """
    what = DECODE if decoded else READ
    chunks = [paths[start : start + _CHUNK] for start in range(0, len(paths), _CHUNK)]
    results: list[Result] = []

    def some(chunk: Sequence[str]) -> list[Result]:
        return [_one(known, path, decoded=decoded) for path in chunk]

    try:
        with workers() as pool:
            for found in pool.map(some, chunks):
                results += found
                known.keep_now_and_then()
                progress(what, len(results), len(paths))
    finally:
        known.keep()
    return results


def _one(known: Known, path: str, *, decoded: bool) -> Result:
    where = os.path.join(known.root, path)
    try:
        status = os.stat(where)
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        return Result(f"the file cannot be read: {said}", b"")
    found = known.get(path, status, decoded=decoded)
    if found is not None:
        return found
    try:
        content = content_of(where)
    except DataError as error:
        return Result(str(error), b"")  # not kept: the file may be there or be readable again
    problem = None
    if decoded:
        try:
            decode(content, _CHANNELS)
        except DataError as error:
            problem = str(error)
    result = Result(problem, digest_of(content), state_of(status))
    known.add(path, Seen(decoded, result))
    return result
