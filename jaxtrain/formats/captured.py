"""What libraries in C++ write to stderr on their own."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import IO


@contextlib.contextmanager
def captured_stderr() -> Iterator[IO[str]]:
    """All that this process writes to stderr goes into the file that is given, not to the user."""
    sys.stderr.flush()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as file:
        before = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield file
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)
