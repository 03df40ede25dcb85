"""`jaxtrain predict`: the probabilities of `eval`, for images as people have them."""

import csv
import io
import json
import os
import pty
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from e2e.command import SCRIPT, Command
from e2e.digits import TEST, first_digits
from PIL import Image

TITLES = ["path", "class", "probability", "error"]


@pytest.fixture(scope="module")
def place(new_command: Callable[[], Command]) -> Command:
    """A command beside a finished run in `run`, its test split in other forms, and bad files."""
    command = new_command()
    command.result("train", "--config=digits.py", "--workdir=run")
    command.result("eval", "--workdir=run", "--predictions=eval.csv", "--top_k=3")
    images, _ = first_digits("t10k", TEST)
    np.save(command.folder / "digits.npy", images)
    (command.folder / "photos" / "inner").mkdir(parents=True)
    for index in range(4):
        name = "inner/3.png" if index == 3 else f"{index}.png"
        Image.fromarray(images[index]).save(command.folder / "photos" / name)
    (command.folder / "photos" / "notes.txt").write_text("no image")
    colour = np.stack([images[0]] * 3, -1)
    Image.fromarray(colour).resize((280, 280), 0).save(command.folder / "large.bmp")
    encoded = (command.folder / "photos" / "1.png").read_bytes()
    (command.folder / "half.png").write_bytes(encoded[: len(encoded) // 2])
    (command.folder / "text.jpg").write_text("no image")
    return command


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def expected_rows(place: Command) -> list[dict[str, str]]:
    return rows_of((place.folder / "eval.csv").read_bytes().decode())


def predicted(place: Command, *words: str) -> list[dict[str, str]]:
    done = place("predict", "--workdir=run", *words)
    assert done.returncode == 0, done.stderr
    return rows_of(done.stdout)


def test_eval_writes_a_row_for_every_example(place: Command) -> None:
    rows = expected_rows(place)
    _, labels = first_digits("t10k", TEST)
    assert [row["path"] for row in rows] == [f"test[{index}]" for index in range(TEST)]
    assert [row["label"] for row in rows] == [str(label) for label in labels]
    right = sum(row["class"] == row["label"] for row in rows)
    result = json.loads((place.folder / "run" / "result.json").read_text())
    assert right / TEST == result["eval"]["accuracy"]
    for row in rows:
        top = [float(row[name]) for name in ("probability", "probability_2", "probability_3")]
        assert 1 >= top[0] >= top[1] >= top[2] > 0
        assert len({row["class"], row["class_2"], row["class_3"]}) == 3


@pytest.mark.parametrize("batch_size", ["1000", "7"])
def test_an_array_gets_the_probabilities_of_eval(place: Command, batch_size: str) -> None:
    rows = predicted(place, "--top_k=3", f"--config.eval.batch_size={batch_size}", "digits.npy")
    assert [row["path"] for row in rows] == [f"digits.npy[{index}]" for index in range(TEST)]
    for row, expected in zip(rows, expected_rows(place), strict=True):
        for rank in ("", "_2", "_3"):
            assert row["class" + rank] == expected["class" + rank]
            found = float(row["probability" + rank])
            assert found == pytest.approx(float(expected["probability" + rank]), abs=1e-6)


def test_files_folders_and_globs_come_in_the_order_given(place: Command) -> None:
    words = ["large.bmp", "photos", "photos/[01].png", "digits.npy"]
    done = place("predict", "--workdir=run", *words)
    assert done.returncode == 0, done.stderr
    assert (
        "\r\n"
        in subprocess.run(
            [SCRIPT, "predict", "--workdir=run", "photos/0.png"],
            cwd=place.folder,
            capture_output=True,
            check=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        ).stdout.decode()
    )
    rows = rows_of(done.stdout)
    files = [f"photos/{name}" for name in ("0.png", "1.png", "2.png", "inner/3.png")]
    arrays = [f"digits.npy[{index}]" for index in range(TEST)]
    assert [row["path"] for row in rows] == ["large.bmp", *files, *files[:2], *arrays]
    expected = expected_rows(place)
    digits = [0, 0, 1, 2, 3, 0, 1, *range(TEST)]
    for row, digit in zip(rows[1:], digits[1:], strict=True):
        assert float(row["probability"]) == pytest.approx(
            float(expected[digit]["probability"]), abs=1e-6
        )
    assert rows[0]["class"] == expected[0]["class"], "ten times as large, in colour"


def test_a_list_comes_from_stdin(place: Command) -> None:
    done = subprocess.run(
        [SCRIPT, "predict", "--workdir=run", "-", "--output=listed.jsonl"],
        cwd=place.folder,
        input="photos/2.png\nphotos/0.png\n",
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    result = json.loads(done.stdout)
    assert (result["status"], result["count"], result["errors"]) == ("predicted", 2, 0)
    lines = (place.folder / "listed.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["path"] for row in rows] == ["photos/2.png", "photos/0.png"]
    assert rows[1]["top"] == [{name: rows[1][name] for name in ("class", "probability")}]


@pytest.mark.parametrize("output", [[], ["--output=found.csv"]])
def test_a_bad_file_is_a_row_with_its_error(place: Command, output: list[str]) -> None:
    words = ["photos/0.png", "half.png", "text.jpg", "missing.png", "photos/2.png"]
    listed = "\n".join(words) + "\n"
    done = subprocess.run(
        [SCRIPT, "predict", "--workdir=run", *output, "-"],
        cwd=place.folder,
        input=listed,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 3, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "jaxtrain: error: of 5 images 3 could not be read, first half.png: the image is broken"
    )
    text = (place.folder / "found.csv").read_text() if output else done.stdout
    rows = rows_of(text)
    assert [row["path"] for row in rows] == words
    assert list(rows[0]) == TITLES
    assert [bool(row["error"]) for row in rows] == [False, True, True, True, False]
    assert [row["class"] != "" for row in rows] == [True, False, False, False, True]
    if output:
        assert json.loads(done.stdout)["errors"] == 3


def test_a_terminal_gets_a_table(place: Command) -> None:
    main, side = pty.openpty()
    with subprocess.Popen(
        [SCRIPT, "predict", "--workdir=run", "photos/0.png", "half.png"],
        cwd=place.folder,
        stdout=side,
        stderr=subprocess.PIPE,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        text=True,
    ) as process:
        os.close(side)
        text = ""
        with open(main, "rb", buffering=0) as screen:
            try:
                while piece := screen.read(1000):
                    text += piece.decode()
            except OSError:  # how a pty says that the other side has closed it
                pass
        assert process.wait() == 3
    lines = text.splitlines()
    assert re.search(r"path\s+class\s+probability", lines[0])
    assert re.search(r"photos/0.png\s+7\s", text)
    assert "half.png" in text


def test_an_export_needs_no_run(place: Command, tmp_path: Path) -> None:
    place.result("export", "--workdir=run", "--format=stablehlo", f"--output={tmp_path / 'it'}")
    elsewhere = Command(tmp_path, place.cache)
    photo = place.folder / "digits.npy"
    done = elsewhere("predict", "--exported=it", "--config.eval.batch_size=64", str(photo))
    assert done.returncode == 0, done.stderr
    for row, expected in zip(rows_of(done.stdout), expected_rows(place), strict=True):
        assert row["class"] == expected["class"]
        assert float(row["probability"]) == pytest.approx(float(expected["probability"]), abs=1e-6)


def test_several_devices_say_the_same(place: Command) -> None:
    done = place("predict", "--workdir=run", "digits.npy", devices=8)
    assert done.returncode == 0, done.stderr
    for row, expected in zip(rows_of(done.stdout), expected_rows(place), strict=True):
        assert float(row["probability"]) == pytest.approx(float(expected["probability"]), abs=1e-6)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["photos"], "give one model: --workdir=DIR"),
        (["--workdir=run", "--exported=run", "photos"], "give one model: --workdir=DIR"),
        (["--workdir=run"], "nothing to classify; name images, folders"),
        (["--workdir=run", "missing.png"], "missing.png"),
        (["--workdir=run", "run/eval"], "run/eval"),
        (["--workdir=run", "photos", "--top_k=11"], "--top_k=11 is more than the model's 10"),
        (["--workdir=run", "photos", "--output=a.txt"], "a.txt must end in .csv or .jsonl"),
        (["--workdir=run", "photos", "--output=no/a.csv"], "no folder no; make it first"),
        (["--workdir=run", "photos", "--config.seed=1"], "--config.seed cannot be set for predict"),
        (["--exported=run", "photos"], "--exported=run is not an export: it has no signature.json"),
        (["--workdir=run", "gs://bucket/a.png"], "gs://bucket/a.png"),
    ],
)
def test_bad_usage_is_one_line(place: Command, words: list[str], said: str) -> None:
    done = place("predict", *words)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_a_reader_that_goes_away_ends_it(place: Command) -> None:
    many = "digits.npy " * 40  # more than a pipe holds
    command = f"{SCRIPT} predict --workdir=run --config.eval.batch_size=100 {many}; echo $? >&2"
    done = subprocess.run(
        ["bash", "-c", f"{{ {command}; }} | head -3"],
        cwd=place.folder,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert done.stdout.count("\n") == 3
    assert done.stderr.endswith("141\n")
