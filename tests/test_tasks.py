import jax.numpy as jnp
import numpy as np
import pytest

from jaxtrain.tasks import CLASSIFICATION, Interval, classification_results


def part(losses, labels, mask, step=1) -> Interval:
    return Interval.from_model_output(
        loss=jnp.array(losses, jnp.float32),
        logits=jnp.eye(3, dtype=jnp.float32)[: len(losses)],
        label=jnp.array(labels, jnp.int32),
        mask=jnp.array(mask),
        step=jnp.int32(step),
    )


def test_an_interval_is_its_unmasked_examples():
    whole = part([1.0, 2.0, 9.0], [0, 2, 2], [True, True, False])
    assert whole.compute() == {"loss": 1.5, "accuracy": 0.5}
    both = Interval.empty().merge(whole).merge(part([3.0], [0], [True]))
    assert both.compute() == {"loss": 2.0, "accuracy": pytest.approx(2 / 3)}


def test_the_first_bad_step_stays_and_masked_rows_are_not_looked_at():
    good = part([1.0, np.nan], [0, 0], [True, False], step=1)
    assert int(good.bad_step) == 0
    merged = good.merge(part([np.inf], [0], [True], 2)).merge(part([np.nan], [0], [True], 3))
    assert int(merged.bad_step) == 2


@pytest.mark.parametrize(
    ("logits", "finite"),
    [([1.0, 2.0], True), ([np.nan, 1.0], False), ([np.inf, 1.0], False), ([3e38, -3e38], False)],
)
def test_a_result_without_a_finite_loss_is_not_finite(logits, finite):
    results = classification_results(jnp.array([logits]), jnp.array([1]))
    assert results["finite"].tolist() == [finite]


def test_the_summary_is_in_float64():
    results = {"loss": np.full(3, 0.1, np.float32), "correct": np.array([True, False, True])}
    found = CLASSIFICATION.summary(results)
    assert found == {"loss": float(np.float32(0.1)), "accuracy": 2 / 3, "count": 3}
