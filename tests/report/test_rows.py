import csv
import io
import json
import os
import platform
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from jaxtrain.errors import CheckpointError, UsageError
from jaxtrain.report import Row, check_rows_file, open_rows, stdout_text
from jaxtrain.report.rows import CsvText, JsonText
from jaxtrain.report.table import TableText

TENTH = float(np.float32(0.1))  # 0.10000000149011612
GOOD = Row(path="a.jpg", classes=("cat", "dog"), probabilities=(0.75, TENTH))
BAD = Row(path="b.jpg", error="the image is empty")
ODD = "caf\xe9/\udcff\udc80.jpg"  # bytes ff and 80 are no UTF-8

# Names as Python has them for any bytes that a file may be called by.
names = st.binary(min_size=1, max_size=12).map(os.fsdecode)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
float32s = st.floats(0, 1, width=32)
ranked = st.lists(st.tuples(texts, float32s), min_size=1, max_size=3)


def row_of(path, top, label):
    classes, probabilities = zip(*top, strict=True)
    return Row(path=path, classes=classes, probabilities=probabilities, label=label)


rows_of_any_kind = st.lists(
    st.builds(row_of, names, ranked, texts)
    | st.builds(lambda path, error: Row(path=path, error=error), names, texts.filter(bool)),
    max_size=5,
)


def escaped(path):
    return path.encode("utf-8", "backslashreplace").decode()


def read_csv(text):
    return list(csv.reader(io.StringIO(text, newline=""), strict=True))


def test_csv_by_the_byte():
    writer = CsvText(top_k=2, with_label=False)
    assert writer.head == "path,class,probability,class_2,probability_2,error\r\n"
    assert writer.text([GOOD, BAD]) == (
        "a.jpg,cat,0.75,dog,0.1,\r\nb.jpg,,,,,the image is empty\r\n"
    )
    odd = Row(path='a,"b"\n.jpg', classes=("x, y",), probabilities=(1.0,), label="cat")
    writer = CsvText(top_k=1, with_label=True)
    assert writer.head == "path,class,probability,label,error\r\n"
    assert writer.text([odd, BAD]) == (
        '"a,""b""\n.jpg","x, y",1.0,cat,\r\nb.jpg,,,,the image is empty\r\n'
    )
    assert writer.text([Row(path=ODD, error="x")]) == "caf\xe9/\\udcff\\udc80.jpg,,,,x\r\n"


def test_json_by_the_byte():
    writer = JsonText()
    assert writer.head == ""
    labelled = Row(path="caf\xe9", classes=("cat",), probabilities=(TENTH,), label="dog")
    assert writer.text([GOOD, BAD, labelled]) == (
        '{"path": "a.jpg", "class": "cat", "probability": 0.75, "top": '
        '[{"class": "cat", "probability": 0.75}, {"class": "dog", "probability": 0.1}]}\n'
        '{"path": "b.jpg", "class": null, "probability": null, "top": [], '
        '"error": "the image is empty"}\n'
        '{"path": "caf\xe9", "class": "cat", "probability": 0.1, "top": '
        '[{"class": "cat", "probability": 0.1}], "label": "dog"}\n'
    )


@given(rows_of_any_kind)
def test_csv_tells_all(rows):
    writer = CsvText(top_k=3, with_label=True)
    content = (writer.head + writer.text(rows)).encode()
    head, *read = read_csv(content.decode())
    assert head[-2:] == ["label", "error"]
    assert len(read) == len(rows)
    for row, fields in zip(rows, read, strict=True):
        assert len(fields) == len(head)
        assert fields[0] == escaped(row.path)
        assert fields[-2:] == [row.label or "", row.error]
        count = len(row.classes)
        assert fields[1 : 1 + 2 * count : 2] == list(row.classes)
        assert [np.float32(each) for each in fields[2 : 2 + 2 * count : 2]] == [
            np.float32(each) for each in row.probabilities
        ]
        assert not any(fields[1 + 2 * count : -2])


@given(rows_of_any_kind)
def test_json_tells_all_also_the_bytes_of_names(rows):
    content = JsonText().text(rows).encode()
    lines = content.decode().split("\n")
    assert lines.pop() == ""
    assert len(lines) == len(rows)
    for row, line in zip(rows, lines, strict=True):
        read = json.loads(line, parse_constant=pytest.fail)
        assert os.fsencode(read["path"]) == os.fsencode(row.path)
        assert [each["class"] for each in read["top"]] == list(row.classes)
        numbers = [np.float32(each["probability"]) for each in read["top"]]
        assert numbers == [np.float32(each) for each in row.probabilities]
        assert read["class"] == (row.classes[0] if row.classes else None)
        assert ("label" in read) == (row.label is not None)
        assert ("error" in read) == bool(row.error)


@given(float32s)
def test_probabilities_are_short(value):
    row = Row(path="a", classes=("cat",), probabilities=(value,))
    ((_, _, text, _),) = read_csv(CsvText(top_k=1, with_label=False).text([row]))
    assert float(text) == json.loads(JsonText().text([row]))["probability"]
    assert len(text) <= len("1.17549435e-38"), "9 digits tell all float32 apart"


def test_a_table():
    table = TableText(width=80, top_k=2, class_names=["cat", "dog", "nine lives"])
    assert table.head == ""
    assert table.text([GOOD, BAD]) == (
        "path                  class       probability  class_2     probability_2\n"
        "a.jpg                 cat             75.00 %  dog               10.00 %\n"
        "b.jpg                 error: the image is empty\n"
    )
    long = Row(
        path="a/much/longer/path.jpg", classes=("nine lives", "cat"), probabilities=(1.0, 0.0)
    )
    assert table.text([long]) == (
        "a/muc...ger/path.jpg  nine lives     100.00 %  cat                0.00 %\n"
    )
    assert table.text([]) == ""


def test_a_table_is_as_wide_as_the_terminal():
    path = "photographs/of/animals/" + "x" * 60 + "/mouse.jpg"
    row = Row(path=path, classes=("dog",), probabilities=(0.5,))
    for width in range(45, 130):
        titles, line = TableText(width=width, top_k=1, class_names=["dog"]).text([row]).splitlines()
        assert len(line) == len(titles) <= width - 1
        assert line.endswith("  dog        50.00 %")
        start, _, end = line.split("  ")[0].partition("...")
        assert path.startswith(start)
        assert path.endswith(end)
        assert start == path or (start and end)
    narrow = TableText(width=10, top_k=1, class_names=["dog"]).text([row]).splitlines()[1]
    assert narrow.startswith("photo...xx/mouse.jpg  dog")
    row = Row(path="photos/sky/holiday/1.jpg", classes=("dog",) * 3, probabilities=(0.5, 0.3, 0.2))
    wrapped = TableText(width=80, top_k=3, class_names=["dog"]).text([row]).splitlines()[1]
    assert len(wrapped) > 80
    assert wrapped.startswith("photos/sky/holiday/1.jpg  dog")


def test_wide_and_odd_characters_keep_a_table_in_line():
    rows = [
        Row(path=path, classes=(name,), probabilities=(0.5,))
        for path, name in [
            ("\u65e5\u672c\u8a9e.jpg", "\u732b"),
            ("line\nend\r\x1b[31m.jpg", "tab\there"),
            (ODD, "cafe\u0301"),
            ("\u202egpj.x", "dog"),
            ("\u732b" * 40, "\u732b" * 40),
        ]
    ]
    text = TableText(width=70, top_k=1, class_names=[row.classes[0] for row in rows]).text(rows)
    lines = text.splitlines()
    assert len(lines) == 1 + len(rows)
    assert {cell_len(line) for line in lines} == {cell_len(lines[0])}
    assert all(line.isprintable() for line in lines)
    assert "\\u65e5" not in text
    assert r"line\nend\r\x1b[31m.jpg" in text
    assert r"caf" + "\xe9" + r"/\udcff\udc80.jpg" in text
    error = Row(path="a\nb", error="c\x1bd\ne")
    assert TableText(width=70, top_k=1, class_names=[]).text([error]).splitlines()[1:] == [
        r"a\nb                  error: c\x1bd\ne"
    ]


@given(st.lists(names, min_size=1, max_size=5), st.integers(1, 120))
def test_any_names_in_a_table(paths, width):
    rows = [Row(path=path, classes=(path,), probabilities=(0.5,)) for path in paths]
    text = TableText(width=width, top_k=1, class_names=paths).text(rows)
    text.encode()
    lines = text.split("\n")
    assert len(lines) == len(rows) + 2
    assert {cell_len(line) for line in lines[:-1]} == {cell_len(lines[0])}


def test_stdout_is_for_a_person_or_a_program():
    assert isinstance(stdout_text(width=80, top_k=1, class_names=["cat"]), TableText)
    text = stdout_text(width=None, top_k=2, class_names=["cat"])
    assert text.head == "path,class,probability,class_2,probability_2,error\r\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.csv", CsvText(top_k=2, with_label=True)),
        ("ROWS.CSV", CsvText(top_k=2, with_label=True)),
        ("rows.jsonl", JsonText()),
    ],
)
def test_a_file_gets_to_its_place_whole(tmp_path, name, text):
    path = tmp_path / name
    path.write_text("old")
    odd = Row(path=ODD, error="odd")
    with open_rows(path, top_k=2, with_label=True) as rows:
        rows.write(GOOD)
        rows.write(BAD, odd)
        assert path.read_text() == "old"
    assert path.read_bytes().decode() == text.head + text.text([GOOD, BAD, odd])
    assert os.listdir(tmp_path) == [name]


def test_a_file_without_rows(tmp_path):
    with open_rows(tmp_path / "a.csv", top_k=1):
        pass
    assert (tmp_path / "a.csv").read_bytes() == b"path,class,probability,error\r\n"
    with open_rows(tmp_path / "a.jsonl", top_k=1):
        pass
    assert (tmp_path / "a.jsonl").read_bytes() == b""


@pytest.mark.parametrize("stop", [KeyboardInterrupt, GeneratorExit, ValueError, OSError])
def test_an_interrupted_file_leaves_nothing(tmp_path, stop):
    path = tmp_path / "rows.csv"
    path.write_text("old")

    def interrupted():
        with open_rows(path, top_k=2) as rows:
            rows.write(*[GOOD] * 10_000)
            raise stop

    with pytest.raises(stop):
        interrupted()
    assert os.listdir(tmp_path) == ["rows.csv"]
    assert path.read_text() == "old"


def test_places_that_cannot_be(tmp_path, monkeypatch):
    (tmp_path / "folder.csv").mkdir()
    for name, said in {
        "rows.txt": r"rows\.txt must end in \.csv or \.jsonl",
        "rows": r"must end in \.csv or \.jsonl",
        "folder.csv": r"folder\.csv is a folder",
        "gone/rows.csv": r"there is no folder .*gone; make it",
    }.items():
        with pytest.raises(UsageError, match=said), open_rows(tmp_path / name, top_k=1):
            pytest.fail("opened")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UsageError, match="is not writable; choose another"):
        check_rows_file(tmp_path / "rows.csv")
    assert os.listdir(tmp_path) == ["folder.csv"]


def test_a_full_disk_is_said(tmp_path, monkeypatch):
    def full(path, mode):
        monkeypatch.undo()
        return open("/dev/full", mode)

    monkeypatch.setattr("builtins.open", full)
    said = "cannot write .*rows.csv: No space left on device; make room"
    with (
        pytest.raises(CheckpointError, match=said),
        open_rows(Path(tmp_path / "rows.csv"), top_k=2) as rows,
    ):
        rows.write(*[GOOD] * 10)
    assert os.listdir(tmp_path) == []


def test_what_a_killed_process_left_is_removed(tmp_path):
    left = tmp_path / f".rows.csv.{platform.node()}.{2**22 + 1}.0123abcd.tmp"
    left.write_text("half")
    with open_rows(tmp_path / "rows.csv", top_k=1) as rows:
        rows.write(Row(path="a", classes=("b",), probabilities=(0.5,)))
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


def test_a_link_stays_one_and_a_pipe_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "link.csv"
    link.symlink_to(tmp_path / "elsewhere" / "rows.csv")
    with open_rows(link, top_k=1):
        pass
    assert link.is_symlink()
    assert (tmp_path / "elsewhere" / "rows.csv").is_file()
    (tmp_path / "nowhere.csv").symlink_to(tmp_path / "gone" / "rows.csv")
    (tmp_path / "circle.csv").symlink_to(tmp_path / "circle.csv")
    for name, said in (
        ("nowhere", rf"nowhere\.csv cannot be written: there is no folder {tmp_path}/gone"),
        ("circle", r"circle\.csv is a link that leads in a circle"),
        ("x" * 300, r"x\.csv cannot be written: File name too long; name another"),
    ):
        with pytest.raises(UsageError, match=said):
            check_rows_file(tmp_path / f"{name}.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(UsageError, match=r"pipe\.csv is no regular file"):
        check_rows_file(tmp_path / "pipe.csv")
