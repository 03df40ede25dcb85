"""Runs on features: what is checked before anything is made."""

from pathlib import Path

import jax
import numpy as np
import pytest
from helpers import data_mesh

from jaxtrain import setup
from jaxtrain.config import from_dict
from jaxtrain.errors import UsageError
from jaxtrain.state import abstract_model

FEATURES = np.random.RandomState(0).normal(5, 3, (60, 4))
LABELS = np.arange(60) % 3


@pytest.fixture
def path(tmp_path: Path) -> str:
    place = tmp_path / "arrays.npz"
    test = FEATURES[:9, :], LABELS[:9]
    np.savez(place, x_train=FEATURES, y_train=LABELS, x_test=test[0], y_test=test[1])
    return str(place)


def build(path: str, **keys: object) -> setup.Run:
    data = {name: value for name, value in keys.items() if name != "model"}
    config = {
        "data": {"source": "arrays", "path": path, **data},
        "model": keys.get("model", {}),
        "train": {"batch_size": 20, "steps": 3},
    }
    return setup.build(from_dict(config), data_mesh(jax.devices()[:1]))


def test_a_run_is_of_features(path: str) -> None:
    run = build(path)
    assert run.image_shape == (4,)
    assert run.steps_per_call > 1
    assert (run.fixed.normalise.mean, run.fixed.normalise.std) == ((0.0,), (1.0,))
    kernel = run.abstract.params["hidden_0"]["kernel"]
    assert kernel.shape == (4, 512)


def test_a_module_of_ones_own_gets_rows_of_features(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows_of_features.py").write_text(
        "import flax.linen as nn\n"
        "class Net(nn.Module):\n"
        "    num_classes: int\n"
        "    @nn.compact\n"
        "    def __call__(self, features):\n"
        "        rows, columns = features.shape\n"
        "        assert columns == 4\n"
        "        return nn.Dense(self.num_classes)(features)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    run = build(path, model={"name": "rows_of_features:Net"})
    assert run.abstract.params["Dense_0"]["kernel"].shape == (4, 3)
    with pytest.raises(UsageError, match=r"cannot be built for features of shape \(3,\) \(Assert"):
        abstract_model(run.fixed.model, (3,), 3)


def test_statistics_are_those_without_the_holdout(path: str) -> None:
    run = build(path, standardize=True, holdout=20)
    seen = run.dataset.train.images
    assert len(seen) == 40
    np.testing.assert_allclose(run.fixed.normalise.mean, seen.mean(0, np.float64), rtol=1e-12)
    whole = build(path, standardize=True).fixed.normalise
    assert whole.mean != run.fixed.normalise.mean
    assert len(whole.std) == 4


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"model": {"name": "resnet50"}}, "a ResNet takes images, but an example is 4 features; "),
        ({"augment": "flip"}, "data.augment: flip: "),
        ({"image_size": (8,)}, "data.image_size is for images, but an example of split train is 4"),
        ({"crop": "random_resized"}, "data.crop is for images, but an example of split train is 4"),
        ({"eval_crop": 0.9}, "data.eval_crop is for images, but an example of split train is 4 "),
        (
            {"mean": (1.0, 2.0)},
            "data.mean=(1.0, 2.0) holds 2 numbers, but examples have 4 features",
        ),
        (
            {"standardize": True, "std": (2.0,)},
            "data.standardize=true takes the place of data.mean",
        ),
        ({"channels": 3}, "data.channels=3 is set, but data.source=arrays does not read it"),
    ],
)
def test_keys_that_are_for_images_are_refused(path: str, keys: dict, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        build(path, **keys)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_images_are_not_standardised(tmp_path: Path) -> None:
    images = np.zeros((60, 5, 4), np.uint8)
    np.savez(tmp_path / "x.npz", x_train=images, y_train=LABELS, x_test=images, y_test=LABELS)
    with pytest.raises(UsageError, match="is for features, but the examples are images of 5x4x1; "):
        build(str(tmp_path / "x.npz"), standardize=True)


def test_splits_have_as_many_features(tmp_path: Path) -> None:
    other = FEATURES[:, :3]
    np.savez(tmp_path / "x.npz", x_train=FEATURES, y_train=LABELS, x_val=other, y_val=LABELS)
    with pytest.raises(UsageError, match="split val is 3 features, but one of train 4 features;"):
        build(str(tmp_path / "x.npz"))
