"""How many threads to work in."""

import os
from typing import Final

_MOST_READERS: Final = 16  # each reads a batch of its own, which is held in memory


def usable_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def readers(asked: int | None) -> int:
    """Threads that read batches ahead: `data.threads`, or one for each CPU, at most 16."""
    return asked or min(usable_cpus(), _MOST_READERS)
