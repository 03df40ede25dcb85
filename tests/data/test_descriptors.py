from jaxtrain.data import descriptors


def test_what_a_process_may_open(monkeypatch):
    for limit, expected in {1024: 256, 10**6: 4096, 2: 1, -1: 4096}.items():
        monkeypatch.setattr("resource.getrlimit", lambda _, limit=limit: (limit, limit))
        assert descriptors.open_files() == expected
