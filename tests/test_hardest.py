import csv
import io

import numpy as np
import pytest
from helpers import split
from PIL import Image

from jaxtrain import hardest
from jaxtrain.data import ArraySplit

NAMES = [f"class {number}" for number in range(10)]


def results(losses):
    losses = np.asarray(losses, np.float32)
    prediction = np.arange(len(losses), dtype=np.int32) % 10
    return {
        "loss": losses,
        "prediction": prediction,
        "correct": prediction == 0,
        "probability": np.linspace(0.1, 1, len(losses), dtype=np.float32),
    }


def norms_of(values, asked):
    values = np.asarray(values, np.float32)

    def norms(indices):
        asked.append(indices.tolist())
        return values[indices]

    return norms


def test_by_loss_only_the_listed_get_a_norm_and_of_equals_the_first_is_first():
    asked = []
    found = hardest.find(results([1, 3, 2, 3, 0, 3]), 4, "loss", norms_of(np.arange(6), asked))
    assert found.indices.tolist() == [1, 3, 5, 2]
    assert asked == [[1, 3, 5, 2]]
    np.testing.assert_array_equal(found.norms, [1, 3, 5, 2])
    np.testing.assert_array_equal(found.results["loss"], [3, 3, 3, 2])
    np.testing.assert_array_equal(found.results["prediction"], [1, 3, 5, 2])


def test_by_gradient_all_examples_are_looked_at():
    asked = []
    values = [4, 9, 9, np.nan, 0.5, np.inf]
    found = hardest.find(results(np.zeros(6)), 4, "gradient", norms_of(values, asked))
    assert asked == [[0, 1, 2, 3, 4, 5]]
    assert found.indices.tolist() == [3, 5, 1, 2], "what is not finite first, equals in their order"
    np.testing.assert_array_equal(found.norms, [np.nan, np.inf, 9, 9])


def test_of_fewer_examples_all_are_listed():
    found = hardest.find(results([1, 2]), 50, "loss", None)
    assert found.indices.tolist() == [1, 0]
    assert found.norms is None


class Files(ArraySplit):
    def file_of(self, index):
        return f"photos/a, {index}.png" if index % 2 else None


def table(found, examples):
    content = hardest.files(found, examples, NAMES, "step 3")["table"]
    assert content.endswith(b"\r\n")
    return list(csv.DictReader(io.StringIO(content.decode(), newline="")))


def test_the_table_names_files_classes_and_numbers():
    images = split(6)
    examples = Files("test", images.images, images.labels, "memory")
    losses = [0.1, 0.3, 0.2, 1.5, 0, 7.25]
    found = hardest.find(results(losses), 3, "loss", norms_of([1, 2, 3, 1e-5, 5, 0.1], []))
    rows = table(found, examples)
    assert [row["rank"] for row in rows] == ["1", "2", "3"]
    assert [row["path"] for row in rows] == [f"photos/a, {index}.png" for index in (5, 3, 1)]
    assert [row["label"] for row in rows] == [NAMES[images.labels[index]] for index in (5, 3, 1)]
    assert [row["class"] for row in rows] == ["class 5", "class 3", "class 1"]
    assert [row["loss"] for row in rows] == ["7.25", "1.5", "0.3"]
    assert [row["gradient_norm"] for row in rows] == ["0.1", "1e-05", "2.0"]
    assert np.float32(rows[1]["probability"]) == found.results["probability"][1]
    assert list(rows[0]) == [
        *("rank", "path", "label", "class", "probability", "loss", "gradient_norm")
    ]


def test_no_file_is_a_place_and_no_gradient_an_empty_cell():
    (row,) = table(hardest.find(results([0, 0, 1, 0]), 1, "loss", None), split(4))
    assert (row["path"], row["gradient_norm"]) == ("test[2]", "")


def enlarged(image, factor):
    return image[..., [0, 0, 0]].repeat(factor, 0).repeat(factor, 1)


@pytest.mark.parametrize("by", ["loss", "gradient"])
def test_the_picture_shows_them_in_their_order(by):
    examples = split(30)
    values = np.random.RandomState(0).permutation(30)
    found = hardest.find(results(values), 12, by, norms_of(values, []))
    content = hardest.files(found, examples, NAMES, "step 3")["picture"]
    with Image.open(io.BytesIO(content)) as picture:
        shown = np.asarray(picture)
    columns, lines = 10, 3 + (by == "gradient")  # images of 95 x 114
    top = shown.shape[0] - 2 * (114 + 18 * lines + 12)
    for place, index in enumerate(found.indices.tolist()):
        y = top + place // columns * (114 + 18 * lines + 12) + 18 * lines
        x = 12 + place % columns * (95 + 3 + 12)
        expected = enlarged(examples.images[index], 19)
        np.testing.assert_array_equal(shown[y : y + 114, x : x + 95], expected)


def test_captions_say_classes_and_numbers():
    examples = split(4)
    values = [0.25, 12.3456, 3, 1]
    by_loss = hardest.find(results(values), 1, "loss", norms_of([1, 2, 3, 4], []))
    label = NAMES[examples.labels[1]]
    lines = (f"1. {label}", "-> class 1", "40%, loss 12.35")
    assert hardest._caption(by_loss, 0, examples, NAMES) == lines
    by_norm = hardest.find(results(values), 3, "gradient", norms_of([1, 20.56789, 3, 40], []))
    assert hardest._caption(by_norm, 1, examples, NAMES) == (
        f"2. {label}",
        *lines[1:],
        "gradient 20.57",
    )


def test_a_long_list_has_a_picture_of_its_beginning():
    examples = split(300)
    found = hardest.find(results(np.arange(300)), 300, "loss", None)
    contents = hardest.files(found, examples, NAMES, "step 3")
    assert contents["table"].count(b"\r\n") == 301
    with Image.open(io.BytesIO(contents["picture"])) as picture:
        heading = picture.height - -(-256 // 10) * (114 + 18 * 3 + 12)
    assert 0 < heading < 100


def test_features_have_no_picture():
    features = ArraySplit("test", np.zeros((3, 4), np.float32), np.zeros(3, np.int32), "memory")
    found = hardest.find(results([1, 2, 3]), 2, "loss", None)
    assert list(hardest.files(found, features, NAMES, "step 3")) == ["table"]
