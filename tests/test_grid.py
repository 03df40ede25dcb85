import io

import numpy as np
import pytest
from PIL import Image, ImageFont

from jaxtrain import grid


def pixels(content: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(content)) as picture:
        assert (picture.format, picture.mode) == ("PNG", "RGB")
        return np.asarray(picture)


def test_texts_fit_their_width():
    font = ImageFont.load_default(13)
    text = "by data.augment=" + "|".join(["pad_crop(4)"] * 30)
    lines = grid._wrapped(text, font, 300)
    assert "".join(lines) == text
    assert len(lines) > 1
    assert all(font.getlength(line.rstrip()) <= 300 for line in lines)
    shortened = grid._shortened("n" * 100, font, 90)
    assert shortened.endswith("n...")
    assert 80 < font.getlength(shortened) <= 90
    assert grid._shortened("cat", font, 90) == "cat"


@pytest.mark.parametrize("lines", [1, 3])
@pytest.mark.parametrize("pictures", [1, 2])
def test_cells_lie_in_reading_order_below_their_captions(lines, pictures):
    images = (
        np.linspace(0, 1, 25, dtype=np.float32)[:, None, None, None].repeat(28, 1).repeat(28, 2)
    )
    layout = grid.Layout.of((28, 28, 1), pictures=pictures, lines=lines)
    captions = [[f"line {line}" for line in range(lines)] for _ in images]
    shown = pixels(
        grid.png(layout, ["heading"], captions, ([image] * pictures for image in images))
    )
    side = layout.picture[0]
    assert side == 112
    assert layout.cell == (pictures * 115 + 12, 112 + 18 * lines + 12)
    rows = -(-25 // layout.columns)
    assert shown.shape[0] == 12 + 18 + 12 + rows * layout.cell[1]
    paper = shown[0, 0]
    for at, image in enumerate(images):
        left = 12 + at % layout.columns * layout.cell[0]
        top = 42 + at // layout.columns * layout.cell[1]
        for line in range(lines):
            words = shown[top + 18 * line : top + 18 * (line + 1), left : left + side]
            assert (words != paper).any()
        for picture in range(pictures):
            x, y = left + picture * (side + 3), top + 18 * lines
            assert (shown[y : y + side, x : x + side] == np.rint(image[0, 0, 0] * 255)).all()


def test_a_longer_caption_changes_nothing_else():
    image = np.zeros((28, 28, 3), np.float32)
    layout = grid.Layout.of(image.shape, pictures=1, lines=2)
    short, long = (
        pixels(grid.png(layout, [], [("a", name), ("b", "c")], [[image], [image]]))
        for name in ("x", "a very long name of a class")
    )
    changed = np.argwhere((short != long).any(-1))
    assert len(changed)
    assert changed[:, 1].max() < 12 + layout.cell[0] - 12
