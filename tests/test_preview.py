"""The picture of `check --preview` shows what a step trains on."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from jaxtrain import preview, setup
from jaxtrain.config import from_dict
from jaxtrain.data import ArraySplit, Batch
from jaxtrain.errors import UsageError
from jaxtrain.setup import Run
from jaxtrain.step import train_step

AUGMENT = "flip|affine(rotate=20, translate=0.2)|noise(0.1)"
BATCH = 16


def build(
    shape: tuple[int, ...] = (10, 12, 3), seed: int = 5, model: str = "mlp", **data: Any
) -> Run:
    synthetic = {"image_shape": shape, "examples": 64, "eval_examples": 8}
    return setup.build(
        from_dict(
            {
                "seed": seed,
                "data": {"source": "synthetic", "synthetic": synthetic, **data},
                "model": {"name": model, "mlp": {"hidden_sizes": [4]}},
                "train": {"steps": 9, "batch_size": BATCH},
            }
        )
    )


def trained_on(run: Run, step: int) -> np.ndarray:
    """The images that the network is given in a step, before they are normalised."""
    seen = []

    def normalise(image: Any) -> Any:
        seen.append(np.asarray(image))
        return image

    indices, seeds = run.sampler.indices(step), run.sampler.row_seeds(step)
    batch = Batch(
        image=jnp.asarray(run.dataset.train.read(indices, seeds)),
        label=jnp.asarray(run.dataset.train.labels[indices]),
        mask=jnp.ones(BATCH, bool),
        row=jnp.arange(BATCH, dtype=jnp.int32),
    )
    state = run.create_state().replace(step=jnp.int32(step - 1))
    train_step(dataclasses.replace(run.fixed, normalise=normalise), state, batch)
    (image,) = seen
    return image


@pytest.mark.parametrize(
    ("keys", "changes"),
    [
        ({}, ()),
        ({"augment": AUGMENT, "seed": 2**32 - 1}, (f"data.augment={AUGMENT}",)),
        (
            {"augment": " flip ", "crop": "random_resized(0.2, 0.8)", "image_size": [9]},
            ("data.crop=random_resized(0.2, 0.8)", "data.augment=flip"),
        ),
        ({"augment": "flip|cutmix"}, ("data.augment=flip|cutmix",)),
    ],
)
def test_after_is_what_the_step_trains_on(keys, changes):
    run = build(**keys)
    shown = preview.examples(run, 7, BATCH)
    np.testing.assert_allclose(shown.after, trained_on(run, 7), atol=2e-6)
    indices = run.sampler.indices(7)
    np.testing.assert_array_equal(shown.labels, run.dataset.train.labels[indices])
    assert shown.changes == changes
    assert (shown.before == shown.after).all() == (not changes)


def test_fewer_rows_and_another_step():
    run = build(augment=AUGMENT)
    whole, part = preview.examples(run, 2, BATCH), preview.examples(run, 2, 3)
    np.testing.assert_allclose(part.after, whole.after[:3], atol=2e-6)
    np.testing.assert_array_equal(part.before, whole.before[:3])
    assert (preview.examples(run, 3, 3).after != part.after).any()


def test_mixed_rows_say_both_classes_and_their_shares():
    run = build(augment="mixup(0.4, p=0.5)")
    shown = preview.examples(run, 2, BATCH)
    expected = shown.shares[:, None, None, None]
    partner = shown.before.reshape(-1, 2, *shown.before.shape[1:])[:, ::-1]
    mixture = expected * shown.before + (1 - expected) * partner.reshape(shown.before.shape)
    np.testing.assert_allclose(shown.after, mixture, atol=1e-6)
    labels = run.dataset.train.labels[run.sampler.indices(2)]
    np.testing.assert_array_equal(shown.labels, labels)
    np.testing.assert_array_equal(shown.others, labels.reshape(-1, 2)[:, ::-1].ravel())
    names = [f"<{number}>" for number in range(10)]
    captions = shown.captions(names)
    for caption, label, other, share in zip(
        captions, labels, shown.others, shown.shares, strict=True
    ):
        mixed = f"{share:.0%} {names[label]} + {1 - share:.0%} {names[other]}"
        assert caption == (names[label] if share == 1 else mixed)
    assert {share == 1 for share in shown.shares.tolist()} == {True, False}
    # An odd number of rows is shown with a partner that is not.
    odd = preview.examples(run, 2, 3)
    assert odd.captions(names) == captions[:3]
    np.testing.assert_allclose(odd.after, shown.after[:3], atol=1e-6)


def test_captions_without_mixing_are_the_classes():
    run = build(augment="flip")
    shown = preview.examples(run, 1, 4)
    assert shown.captions(run.dataset.class_names) == [str(label) for label in shown.labels]


def test_before_is_what_evaluation_would_see_of_the_kept_examples():
    run = build(crop="random_resized", image_size=[6], holdout=16)
    shown = preview.examples(run, 1, BATCH)
    assert shown.before.shape == (BATCH, 6, 6, 3)
    plain = build(crop="center", image_size=[6], holdout=16)
    images = plain.dataset.train.read(run.sampler.indices(1))
    np.testing.assert_allclose(shown.before * 255, images, atol=1e-4)


def test_before_has_the_size_that_is_evaluated(tmp_path):
    run = build(image_size=[6], eval_image_size=[9], model="resnet8")
    shown = preview.examples(run, 1, BATCH)
    assert shown.changes == ("data.image_size=6x6",)
    assert (shown.before.shape, shown.after.shape) == ((BATCH, 9, 9, 3), (BATCH, 6, 6, 3))
    middle = build(image_size=[9]).dataset.train.read(run.sampler.indices(1))
    np.testing.assert_allclose(shown.before * 255, middle, atol=1e-4)
    assert preview.write(run, 1, tmp_path / "a.png")["changes"] == ["data.image_size=6x6"]


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return np.asarray(picture.convert("RGB"))


def found(grid: np.ndarray, block: np.ndarray) -> list[tuple[int, int]]:
    """Places at which a block lies in a picture, both uint8 RGB, in reading order."""
    height, width, _ = block.shape
    near = (grid[: len(grid) - height + 1, : grid.shape[1] - width + 1] == block[0, 0]).all(axis=-1)
    return [
        (y, x)
        for y, x in np.argwhere(near).tolist()
        if (grid[y : y + height, x : x + width] == block).all()
    ]


def enlarged(image: np.ndarray, factor: int) -> np.ndarray:
    shown = np.rint(image * 255).astype(np.uint8)
    shown = shown[..., :3] if shown.shape[-1] > 2 else shown[..., [0, 0, 0]]
    return shown.repeat(factor, 0).repeat(factor, 1)


@pytest.mark.parametrize(("channels", "factor"), [(1, 9), (2, 9), (3, 9), (4, 9)])
def test_pictures_lie_side_by_side_in_the_batchs_order(tmp_path, channels, factor):
    run = build((10, 12, channels), augment=AUGMENT)
    path = tmp_path / "a.png"
    said = preview.write(run, 2, path)
    assert said == {
        "file": str(path),
        "step": 2,
        "examples": BATCH,
        "changes": [f"data.augment={AUGMENT}"],
    }
    grid, shown = pixels(path), preview.examples(run, 2, BATCH)
    places = []
    for before, after in zip(shown.before, shown.after, strict=True):
        ((y, x),) = found(grid, enlarged(before, factor))
        assert found(grid, enlarged(after, factor)) == [(y, x + 12 * factor + 3)]
        places.append((y, x))
    assert places == sorted(places)
    assert len({y for y, _ in places}) > 1


def test_no_change_shows_every_example_once(tmp_path):
    run = build()
    said = preview.write(run, 1, tmp_path / "a.png")
    assert said["changes"] == []
    grid = pixels(tmp_path / "a.png")
    for image in preview.examples(run, 1, BATCH).after:
        assert len(found(grid, enlarged(image, 9))) == 1


@pytest.mark.parametrize(
    ("shape", "count"),
    [((300, 400, 3), 8), ((1, 1000, 1), BATCH), ((1000, 1, 1), BATCH), ((1, 1, 1), BATCH)],
)
def test_pictures_of_any_shape_fit_a_screen(tmp_path, shape, count):
    said = preview.write(build(shape, augment="flip"), 1, tmp_path / "a.png")
    assert said["examples"] == count
    height, width, _ = pixels(tmp_path / "a.png").shape
    assert 400 <= width <= 1212
    assert 200 <= height <= 1180


def with_names(run: Run, names: tuple[str, ...]) -> Run:
    return dataclasses.replace(run, dataset=dataclasses.replace(run.dataset, class_names=names))


def test_class_names_of_any_length_and_script_change_no_picture(tmp_path):
    run = build()
    preview.write(run, 1, tmp_path / "short.png")
    long = ("x" * 500, "two\nlines", "", "Ä é ñ", "猫", *"abcde")
    preview.write(with_names(run, long), 1, tmp_path / "long.png")
    short, other = pixels(tmp_path / "short.png"), pixels(tmp_path / "long.png")
    assert short.shape == other.shape
    assert (short != other).any()
    for image in preview.examples(run, 1, BATCH).after:
        place = found(short, enlarged(image, 9))
        assert found(other, enlarged(image, 9)) == place


def test_a_picture_replaces_another_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "a.png"
    path.write_text("old")
    preview.write(build(), 1, path)
    assert pixels(path).size
    assert list(tmp_path.iterdir()) == [path]
    link = tmp_path / "link.png"
    link.symlink_to(path)
    path.write_text("old")
    preview.write(build(), 1, link)
    assert link.is_symlink()
    assert pixels(path).size


def test_a_folder_that_cannot_be_written_is_refused(
    open_place: Path, read_only: Callable[[Path], Any]
):
    run = build()
    with read_only(open_place), pytest.raises(UsageError, match=r"cannot write .*a\.png"):
        preview.write(run, 1, open_place / "a.png")


def test_images_in_memory_are_not_changed(tmp_path):
    run = build(augment=AUGMENT)
    images = run.dataset.train.images
    split = ArraySplit("train", images.copy(), run.dataset.train.labels, "memory")
    run = dataclasses.replace(run, dataset=dataclasses.replace(run.dataset, train=split))
    preview.write(run, 1, tmp_path / "a.png")
    np.testing.assert_array_equal(split.images, images)
