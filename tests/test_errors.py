import pytest

from jaxtrain.errors import some


@pytest.mark.parametrize(
    ("names", "most", "text"),
    [
        ((), 8, ""),
        ("abc", 3, "a, b, c"),
        ("abcd", 3, "a, b, c and 1 more files"),
        ("a" * 1002, 1, "a and 1,001 more files"),
    ],
)
def test_some_names_stand_for_all(names, most, text):
    assert some(names, most, " files") == text
