import dataclasses

import pytest


@dataclasses.dataclass
class Clock:
    """A clock that stands still until it is told."""

    now: float = 1000.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock():
    return Clock()
