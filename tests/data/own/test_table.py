"""Lists of images: CSV in its dialects, JSON lines, and what is wrong with them."""

import csv
import io
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.config.schema import DataConfig
from jaxtrain.data.own.found import Found
from jaxtrain.data.own.table import read_table
from jaxtrain.errors import UsageError

CONFIG = DataConfig(source="csv")
# What a field may hold: CSV has quotes for all of it; a NUL is no path, and ends are stripped.
TEXTS = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1, max_size=8
).filter(lambda text: text.strip() == text)


def read(tmp_path: Path, text: str | bytes, name: str = "list.csv", **keys: str) -> Found:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_table(DataConfig(source="csv", **keys), path)


def pairs(found: Found, split: str = "train") -> list[tuple[str, str]]:
    return list(zip(found.splits[split].paths, found.splits[split].labels, strict=True))


@pytest.mark.parametrize(
    "text",
    [
        "path,label\na.jpg,cat\nb c.jpg,dog\n",
        "path,label\r\na.jpg,cat\r\nb c.jpg,dog\r\n",
        "path;label\na.jpg;cat\nb c.jpg;dog",
        "path\tlabel\na.jpg\tcat\n\nb c.jpg\tdog\n",
        "label|path|extra\ncat|a.jpg|1\ndog|b c.jpg|2\n",
        "\ufeffpath,label\na.jpg,cat\nb c.jpg,dog\n",
        ' path , label \n"a.jpg",cat\n b c.jpg , dog\n',
        "\n \r\n;;\npath;label\na.jpg;cat\nb c.jpg;dog\n",
    ],
)
def test_dialects(tmp_path, text):
    found = read(tmp_path, text)
    assert pairs(found) == [("a.jpg", "cat"), ("b c.jpg", "dog")]
    assert not found.numbered
    assert found.root == tmp_path


def test_json_lines(tmp_path):
    lines = [{"path": "a.jpg", "label": 3, "more": [1]}, {"label": "0", "path": "b.jpg"}]
    found = read(tmp_path, "\n\n".join(map(json.dumps, lines)), "list.jsonl")
    assert pairs(found) == [("a.jpg", "3"), ("b.jpg", "0")]
    assert found.numbered


@given(
    st.lists(
        st.tuples(TEXTS, TEXTS),
        min_size=1,
        max_size=6,
        unique_by=lambda row: os.path.normpath(row[0]),
    )
)
def test_what_a_program_writes_is_read(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("table")
    content = io.StringIO(newline="")
    csv.writer(content).writerows([("path", "label"), *rows])
    as_csv = pairs(read(folder, content.getvalue()))
    lines = [json.dumps({"path": path, "label": label}) for path, label in rows]
    as_json = pairs(read(folder, "\n".join(lines), "list.jsonl"))
    assert as_csv == as_json
    assert [path for path, _ in as_csv] == [os.path.normpath(path) for path, _ in rows]


def test_columns_may_have_other_names(tmp_path):
    text = "split,image,class,fold\nx,a.jpg,cat,train\nx,b.jpg,dog,Validation\n"
    names = {"path_column": "image", "label_column": "class", "split_column": "fold"}
    found = read(tmp_path, text, **names)
    assert pairs(found) == [("a.jpg", "cat")]
    assert pairs(found, "val") == [("b.jpg", "dog")]


def test_a_column_of_splits(tmp_path):
    text = "path,label,split\na,x,train\nb,y,test\nc,x,fold7\nd,y,train\n"
    found = read(tmp_path, text)
    assert {name: listed.paths for name, listed in found.splits.items()} == {
        "train": ["a", "d"],
        "test": ["b"],
        "fold7": ["c"],
    }


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a+b", "has a + in it, which puts splits together"),
        ("fold/1", "has a / in it"),
        (".", "is no name that a file can have"),
        ("..", "is no name that a file can have"),
        ("\ud800", "is no name that a file can have"),
        ("f" * 101, "has 101 bytes, more than 100"),
        ("\u00e9" * 51, "has 102 bytes, more than 100"),
    ],
)
def test_names_of_splits_that_no_split_can_have(tmp_path, name, why):
    rows = [{"path": "a", "label": 0, "split": "train"}, {"path": "b", "label": 0, "split": name}]
    with pytest.raises(UsageError) as error:
        read(tmp_path, "\n".join(map(json.dumps, rows)), "list.jsonl")
    expected = f"{tmp_path}/list.jsonl, line 2: column split is {name!r}, which {why}; rename it"
    assert str(error.value) == expected


@pytest.mark.parametrize("name", ["f" * 100, "\u00e9" * 50, "fold 1.2", "...", "a-b"])
def test_other_names_of_splits(tmp_path, name):
    assert list(read(tmp_path, f"path,label,split\na,x,{name}\n").splits) == [name]


@pytest.mark.parametrize(
    ("labels", "numbered"),
    [
        (["0", "12"], True),
        (["-1", "3"], True),
        (["0", "x"], False),
        (["01", "02"], False),
        (["1.0"], False),
    ],
)
def test_labels_are_numbers_if_all_are(tmp_path, labels, numbered):
    rows = "".join(f"{number}.jpg,{label}\n" for number, label in enumerate(labels))
    assert read(tmp_path, f"path,label\n{rows}").numbered is numbered


def test_files_that_are_listed_twice_are_told(tmp_path):
    found = read(tmp_path, "path,label,split\na,x,train\na,x,test\nb,x,train\n")
    assert found.notes == ["listed more than once: 1 files, first a (in train and test)"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no column 'path'; its columns: none; set data.path_column"),
        ("file,label\na,b\n", "no column 'path'; its columns: file, label; set data.path_column"),
        ("path,class\na,b\n", "no column 'label'; its columns: path, class; set data.label_column"),
        ("path,label,label\na,b,c\n", "has 2 columns 'label'"),
        ("path,label\n", "lists no images"),
        ("path,label\na,x\nb\n", r"line 3, has 1 fields, but the header 2"),
        ("path,label\na,x,y\n", r"line 2, has 3 fields, but the header 2"),
        ("path,label\na,x\n,y\n", r"line 3: column path is empty"),
        ("path,label\na, \n", r"line 2: column label is empty"),
        ("path,label,split\na,x,\n", r"line 2: column split is empty"),
        ('path,label\n"a,x\n', r"line 2: unexpected end of data; mend it"),
        (
            'path,label\na,x\n"b,x\nc,x\n',
            "line 3: a quote runs on to line 4 \\(unexpected end of data\\); close it",
        ),
        (
            'path,label\n\na,x\nb,"x\nc,x\n"d",x\n',
            "line 4: a quote runs on to line 6 \\(',' expected after '\"'\\); close it",
        ),
        ('path,label\n"a,x\nb,x\n"\n', "line 2, has 1 fields, but the header 2"),
        ("\n\npath,label\na,\n", "line 4: column label is empty"),
        ("path,label\na,x\na,y\n", r"line 3: a is labelled 'y', but 'x' in line 2; keep one"),
        (b"path,label\na,x\nb,caf\xe9\n", r"line 3, is not UTF-8"),
        ("path,label\na\0b,x\n", "line 2: column path has a NUL in it"),
    ],
)
def test_what_is_wrong_with_csv(tmp_path, text, said):
    with pytest.raises(UsageError, match=said) as error:
        read(tmp_path, text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "line 1, is no JSON object"),
        ('{"path": "a", "label": 1}\n{"path": ', "line 2, is no JSON"),
        ('{"path": "a"}', "line 1 has no column 'label'"),
        ('{"path": "a", "label": true}', "column label is true, but must be"),
        ('{"path": "a", "label": 1.5}', "column label is 1.5, but must be"),
        ('{"path": null, "label": 1}', "column path is null, but must be"),
        ("[" * 100_000, "line 1, is no JSON"),
        (
            '{"path": "a", "label": 1, "split": "val"}\n\n{"path": "b", "label": 1}',
            "line 3 has no column 'split', but line 1 has; name a split in every line, or in none",
        ),
        (
            '{"path": "a", "label": 1}\n{"path": "b", "label": 1, "split": "train"}',
            "line 1 has no column 'split', but line 2 has;",
        ),
    ],
)
def test_what_is_wrong_with_json(tmp_path, text, said):
    with pytest.raises(UsageError, match=said) as error:
        read(tmp_path, text, "list.jsonl")
    assert "\n" not in str(error.value)


def test_a_list_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        read_table(CONFIG, tmp_path / "gone.csv")
    with pytest.raises(UsageError, match="Is a directory"):
        read_table(CONFIG, tmp_path)
    with pytest.raises(UsageError, match="File name too long"):
        read_table(CONFIG, tmp_path / ("x" * 300))


def test_a_list_that_cannot_be_reached(open_place, locked):
    (open_place / "list.csv").write_text("path,label\na,x\n")
    said = r"list\.csv cannot be read: Permission denied"
    with locked(open_place, 0o444), pytest.raises(UsageError, match=said):
        read_table(CONFIG, open_place / "list.csv")


@pytest.mark.parametrize(
    "spelled", ["./a/b.jpg", "a//b.jpg", "a/c/../b.jpg", "{root}/a/b.jpg", "{root}/a/../a/b.jpg"]
)
def test_a_file_has_one_name(tmp_path, spelled):
    text = f"path,label\na/b.jpg,x\n{spelled.format(root=tmp_path)},x\n"
    found = read(tmp_path, text)
    assert pairs(found) == [("a/b.jpg", "x")] * 2
    with pytest.raises(UsageError, match=r"a/b\.jpg is labelled 'y', but 'x' in line 2"):
        read(tmp_path, text.removesuffix("x\n") + "y\n")


@pytest.mark.parametrize("spelled", ["{top}/p/cat/0.png", "../link/cat/0.png", "own/0.png"])
@pytest.mark.parametrize("first", ["../p/cat/0.png", "{top}/p/cat/0.png"])
def test_a_file_beside_the_folder_has_one_name(tmp_path, first, spelled):
    """That which comes first, also where links lead there."""
    (tmp_path / "p/cat").mkdir(parents=True)
    (tmp_path / "lists").mkdir()
    (tmp_path / "link").symlink_to("p")
    (tmp_path / "lists/own").symlink_to(tmp_path / "p/cat")
    one, other = (name.format(top=tmp_path) for name in (first, spelled))
    text = f"path,label,split\n{one},x,train\n{other},x,val\n"
    found = read(tmp_path / "lists", text)
    assert [listed.paths for listed in found.splits.values()] == [[one], [one]]
    assert found.notes == [f"listed more than once: 1 files, first {one} (in train and val)"]
    with pytest.raises(UsageError, match="is labelled 'y', but 'x' in line 2; keep one of them"):
        read(tmp_path / "lists", text.replace("x,val", "y,val"))


@pytest.mark.parametrize("path", ["gs://a/b.png", "http://x.org/a.png", "s3://b/a.png"])
def test_paths_on_no_local_disk(tmp_path, path):
    said = f"line 2: {path} is not local; copy it to a local disk first"
    with pytest.raises(UsageError, match=said):
        read(tmp_path, f"path,label\n{path},x\n")


def test_a_local_path_may_look_like_one_that_is_not(tmp_path):
    (tmp_path / "ab:").mkdir()
    (tmp_path / "ab:/1.png").touch()
    assert pairs(read(tmp_path, "path,label\nab:/1.png,x\n")) == [("ab:/1.png", "x")]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder, with a link to it and one that leads out of it beside it."""
    (tmp_path / "place/a").mkdir(parents=True)
    (tmp_path / "elsewhere/deep").mkdir(parents=True)
    (tmp_path / "x").mkdir()
    (tmp_path / "link").symlink_to("place")
    (tmp_path / "place/out").symlink_to(tmp_path / "elsewhere/deep")
    return tmp_path / "place"


@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize("way", ["place", "x/../place", "link", "link/a/..", "place/../link"])
def test_a_list_says_the_same_however_its_own_path_is_spelled(place, monkeypatch, way, absolute):
    top = place.parent
    rows = ["a/0.jpg", f"{top}/place/a/1.jpg", f"{top}/link/a/2.jpg", "../place/a/3.jpg"]
    rows += ["../link/4.jpg", f"{top}/other/5.jpg", "../other/6.jpg", f"{top}/place/out/7.jpg"]
    (place / "list.csv").write_text("path,label\n" + "".join(f"{row},x\n" for row in rows))
    monkeypatch.chdir(top)
    found = read_table(CONFIG, (top if absolute else Path()) / way / "list.csv")
    expected = ["a/0.jpg", "a/1.jpg", "a/2.jpg", "a/3.jpg", "4.jpg"]
    expected += [f"{top}/other/5.jpg", "../other/6.jpg", "out/7.jpg"]
    assert found.splits["train"].paths == expected


def test_a_way_back_from_where_a_link_leads(place):
    """What lies above a linked folder is another one than the folder of the link."""
    top = place.parent
    rows = ["out/../0.jpg", f"{top}/place/out/../1.jpg", "a/../2.jpg", "gone/../3.jpg"]
    rows += ["out/../../place/4.jpg"]
    found = read(place, "path,label\n" + "".join(f"{row},x\n" for row in rows))
    expected = [f"{top}/elsewhere/0.jpg", f"{top}/elsewhere/1.jpg", "2.jpg", "3.jpg", "4.jpg"]
    assert found.splits["train"].paths == expected


def test_names_that_no_file_can_have(tmp_path):
    with pytest.raises(UsageError, match="is no name that a file can have"):
        read(tmp_path, json.dumps({"path": "\ud800.png", "label": "x"}), "list.jsonl")


def test_a_list_that_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(UsageError, match="is no regular file"):
        read_table(CONFIG, tmp_path / "pipe.csv")
