"""How many files to keep open."""

import resource
from typing import Final

_MOST: Final = 4096


def open_files() -> int:
    """How many files a split keeps open: a run has two splits, and needs files for other things."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST if limit == resource.RLIM_INFINITY else max(1, min(_MOST, limit // 4))
