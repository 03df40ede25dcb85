import pytest

from jaxtrain.errors import printable, some


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


def test_what_is_printable_stays_and_the_rest_is_escaped():
    for text in ("Ä 猫 e\u0301", "9.41\u202fAM\u3000x\xa0y"):
        assert printable(text) == text
    assert printable("a\nb\x1b[31m\u202e\udcff") == r"a\nb\x1b[31m\u202e\udcff"
