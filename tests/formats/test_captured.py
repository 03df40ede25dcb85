"""What is written to stderr below Python is captured, and only meanwhile."""

import os

import pytest

from jaxtrain.formats.captured import captured_stderr


def test_only_what_is_written_meanwhile(capfd):
    os.write(2, b"before\n")
    with captured_stderr() as file:
        os.write(2, b"in C++ \xff\n")
        file.seek(0)
        said = file.read()
    os.write(2, b"after\n")
    assert said == "in C++ \N{REPLACEMENT CHARACTER}\n"
    assert capfd.readouterr().err == "before\nafter\n"


def test_an_error_ends_it(capfd):
    with pytest.raises(ValueError, match="no"), captured_stderr():
        raise ValueError("no")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"
