import pytest

from jaxtrain.data.cache import disk


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(disk, "_CHUNK", 4)
    monkeypatch.setattr(disk, "_SAMPLE", 1)
