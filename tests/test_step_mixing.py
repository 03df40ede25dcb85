"""Steps on mixed images: the same whatever the devices, the parts and the place of the data."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import data_mesh
from steps import BATCH, batch_of, close, fixed, leaves_equal, new_state, trained

from jaxtrain import keys
from jaxtrain.normalise import unit_interval
from jaxtrain.step import train_step

MIXED = "flip|noise(0.1)|mixup_or_cutmix(mixup=0.4, p=0.8)"
ONE = jax.devices()[:1]


@pytest.fixture(scope="module")
def alone():
    """What one device makes of the data on it."""
    return trained(1, "device", 6, operations=MIXED)


@pytest.mark.parametrize(
    ("devices", "cache", "options"),
    [
        (8, "memory", {}),
        (8, "device", {"mode": "pmap"}),
        (1, "device", {"accumulate": 4}),
        (4, "device", {"accumulate": 2}),
        (4, "memory", {"accumulate": 2, "mode": "pmap"}),
    ],
)
def test_layouts_change_nothing_but_the_last_digits(alone, devices, cache, options):
    close(alone, trained(devices, cache, 6, operations=MIXED, **options))


def test_places_of_the_data_and_calls_of_several_steps_change_no_bit(alone):
    leaves_equal(alone, trained(1, "memory", 6, operations=MIXED))
    called, metrics = trained(1, "device", 6, operations=MIXED, most=4, lengths=(4, 2))
    leaves_equal(alone[0], called)
    leaves_equal(alone[1][-1], metrics[-1])


def test_it_is_not_the_run_without(alone):
    plain, _ = trained(1, "device", 6, operations="flip|noise(0.1)")
    assert np.abs(plain.params["head"]["kernel"] - alone[0].params["head"]["kernel"]).max() > 1e-3


@pytest.mark.parametrize("text", ["mixup(alpha=0)", "cutmix(p=0)"])
def test_what_mixes_nothing_changes_no_bit(text):
    plain = trained(1, "device", 3)
    leaves_equal(plain, trained(1, "device", 3, operations=f"flip|noise(0.1)|{text}"))


def test_parts_of_a_convolving_step_hold_whole_pairs():
    options = {"name": "convolving", "operations": "cutmix", "accumulate": 2}
    one, history = trained(1, "device", 3, **options)
    spread, others = trained(4, "device", 3, **options)
    close(one.collections, spread.collections, rtol=1e-3, atol=1e-4)
    close([m.interval.loss for m in history], [m.interval.loss for m in others], rtol=1e-3)


def test_masked_rows_change_nothing():
    same = fixed(operations="mixup")
    step = jax.jit(functools.partial(train_step, same))
    current = new_state(data_mesh(ONE), same)
    # Row 2 has a partner that is masked, whatever that shows.
    padded, metrics = step(current, batch_of([3, 1, 4, -1]))
    longer, longer_metrics = step(current, batch_of([3, 1, 4, -1, -1, -1]))
    close((padded, metrics), (longer, longer_metrics), rtol=1e-5, atol=1e-7)
    assert int(metrics.interval.count) == 3
    batch = batch_of([3, 1, 4, -1])
    other = batch._replace(image=batch.image.at[3].set(255), label=batch.label.at[3].set(9))
    leaves_equal((padded, metrics), step(current, other))


def test_the_interval_has_the_loss_of_the_shares_and_the_class_of_the_larger():
    same = fixed(operations="cutmix")
    current, batch = new_state(data_mesh(ONE), same), batch_of(range(BATCH))
    _, metrics = jax.jit(functools.partial(train_step, same))(current, batch)

    @jax.jit
    def seen() -> tuple[jax.Array, jax.Array | None]:
        key = keys.step_key(5, 1, "augment")
        image, share = same.augment.mix(key, unit_interval(batch.image), batch.row, batch.mask)
        logits, _ = same.model.apply(
            current.params,
            current.collections,
            same.normalise(image),
            row=batch.row,
            key=keys.step_key(5, 1, "dropout"),
            mask=batch.mask,
        )
        return logits, share

    logits, share = map(np.asarray, seen())
    label = np.asarray(batch.label)
    other = label.reshape(-1, 2)[:, ::-1].ravel()
    losses = np.stack([same.loss(logits, jnp.full(BATCH, k)) for k in range(10)], axis=1)
    rows = np.arange(BATCH)
    expected = share * losses[rows, label] + (1 - share) * losses[rows, other]
    assert float(metrics.interval.loss) == pytest.approx(expected.sum(), rel=1e-5)
    larger = np.where(share > 0.5, label, other)
    assert int(metrics.interval.correct) == (logits.argmax(axis=1) == larger).sum()
    assert (larger != label).any()
