import jax
import pytest
from helpers import data_mesh

from jaxtrain import setup
from jaxtrain.config import from_dict
from jaxtrain.errors import UsageError


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"model": {"mlp": {"hidden_sizes": [70000, 70000]}}}, "bytes on each device, which has"),
        ({"model": {"mlp": {"hidden_sizes": [2**32]}}}, "bytes on each device, which has"),
        (
            {"train": {"steps": 10, "batch_size": 100}},
            "does not divide over 8 devices; try 96 or 104",
        ),
        ({"train": {"steps": 10, "batch_size": 5}}, "does not divide over 8 devices; try 8"),
        (
            {"train": {"steps": 10, "batch_size": 24}, "data": {"augment": "flip|mixup"}},
            "does not divide over 8 devices and pairs of rows, which data.augment mixes; "
            "try 16 or 32",
        ),
        (
            {
                "train": {"steps": 10, "batch_size": 40, "accumulate": 3},
                "data": {"augment": "cutmix"},
            },
            "8 devices and train.accumulate=3 parts and pairs of rows, which data.augment mixes; "
            "try 48",
        ),
        ({"data": {"augment": "mixup|flip"}}, "mixup mixes finished images; put it last"),
        ({"schedule": {"warmup_steps": 10}}, "does not fit the 10 steps"),
        ({"data": {"source": "minst"}}, "did you mean 'mnist'"),
        ({"optimizer": {"name": "adamm"}}, "did you mean 'adam'"),
    ],
)
def test_what_would_fail_is_found_before_anything_is_made(keys, said):
    config = from_dict({"train": {"steps": 10}, **keys})
    with pytest.raises(UsageError) as caught:
        setup.build(config)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_pairs_need_an_even_batch_on_one_device_too():
    keys = {"train": {"steps": 10, "batch_size": 15}, "data": {"augment": "mixup"}}
    mesh = data_mesh(jax.devices()[:1])
    with pytest.raises(UsageError, match=r"divide over pairs of rows, .*; try 14 or 16"):
        setup.build(from_dict(keys), mesh)
    keys["data"] = {"augment": "mixup(p=0)"}
    assert setup.build(from_dict(keys), mesh).fixed.augment.together == 1


def test_a_run_knows_its_data_and_its_state():
    run = setup.build(from_dict({"train": {"steps": 10}}))
    assert run.image_shape == (28, 28, 1)
    assert set(run.fingerprints) == {"train", "eval"}
    created = run.create_state()
    assert int(created.step) == 0
    assert created.params["hidden_0"]["kernel"].sharding.is_fully_replicated


def test_weights_to_start_from_are_read_for_a_new_run_alone(tmp_path):
    keys = {"train": {"steps": 10}, "model": {"init_from": str(tmp_path / "gone.pth")}}
    run = setup.build(from_dict(keys))
    for read in (run.check_given, run.create_state):
        with pytest.raises(UsageError, match=r"model.init_from=.*gone.pth cannot be read"):
            read()
