import json

import pytest
from matplotlib.colors import to_hex

from jaxtrain.report import mean, replica_name, summed_up
from jaxtrain.report.several import shown, spread, spreads
from jaxtrain.report.sweep import draw, sweep_picture

SEEDS = [{"seed": 20261130}, {"seed": 20261131}]
SWEEP = [{"optimizer.learning_rate": 0.1}, {"optimizer.learning_rate": 1e-05}]
EACH = [
    {"loss": 1.0, "accuracy": 0.5, "count": 10, "weights": "ema"},
    {"loss": 2.0, "accuracy": 0.7, "count": 10, "weights": "ema"},
]


def test_names_tell_replicas_apart():
    assert [replica_name(one) for one in SEEDS] == ["seed=20261130", "seed=20261131"]
    assert [replica_name(one) for one in SWEEP] == ["learning_rate=0.1", "learning_rate=1e-05"]


def test_a_spread_is_of_the_sample():
    found = spread([0.5, 0.7])
    assert found["mean"] == pytest.approx(0.6)
    assert found["deviation"] == pytest.approx(0.02**0.5)
    assert found["values"] == [0.5, 0.7]
    assert spread([0.5, None]) == {"mean": None, "deviation": None, "values": [0.5, None]}


def test_only_measurements_are_spread():
    assert set(spreads(EACH)) == {"loss", "accuracy"}
    lacking = [EACH[0], {"loss": None, "accuracy": None, "count": 10}]
    assert spreads([*lacking])["accuracy"]["values"] == [0.5, None]


def test_seeds_have_means_and_a_sweep_has_values():
    found = summed_up(SEEDS, {"eval": EACH})
    assert found["seed"] == [20261130, 20261131]
    assert found["eval"]["loss"]["mean"] == 1.5
    found = summed_up(SWEEP, {"eval": EACH})
    assert found["optimizer.learning_rate"] == [0.1, 1e-05]
    assert found["eval"]["loss"] == {"values": [1.0, 2.0]}


def test_what_a_person_sees():
    assert shown([], EACH[:1]) == EACH[:1]
    (one,) = shown(SEEDS, EACH)
    assert one == mean(EACH)
    assert (one["loss"], one["replicas"], one["count"]) == (1.5, 2, 10)
    assert [each["replica"] for each in shown(SWEEP, EACH)] == [
        "learning_rate=0.1",
        "learning_rate=1e-05",
    ]


def test_of_a_long_sweep_the_best_are_seen():
    differences = [{"a.b": k} for k in range(20)]
    each = [{"loss": 1.0, "accuracy": (k * 7 % 20) / 20} for k in range(19)]
    found = shown(differences, [*each, {"loss": None, "accuracy": None}])
    assert [one["replica"] for one in found] == [
        f"b={k}, of the 3 best of 20" for k in (17, 14, 11)
    ]


def events(values, bad=2):
    for step in (10, 20):
        for number, value in enumerate(values):
            yield {
                "step": step,
                "split": "test",
                "replica": number,
                "a.b": value,
                "loss": None if number == bad else step * 0.01 + number,
                "accuracy": None if number == bad else 0.5 + number * 0.1 + step * 0.001,
            }


@pytest.mark.parametrize(
    ("values", "scale"), [([0.3, 0.2, 0.1], "linear"), ([1.0, 0.1, 1e-4, 1e-5], "symlog")]
)
def test_the_picture_has_every_value(values, scale):
    figure = draw(list(events(values)), "a.b")
    accuracy, loss, way = figure.axes
    order = sorted(range(len(values)), key=values.__getitem__)
    for axes, first, slope in ((accuracy, 0.52, 0.1), (loss, 0.2, 1.0)):
        line, cross = axes.lines
        assert cross.get_xdata()[0] == values[2]
        assert list(line.get_xdata()) == sorted(values)
        expected = [float("nan") if k == 2 else first + k * slope for k in order]
        assert list(line.get_ydata()) == pytest.approx(expected, nan_ok=True)
        assert axes.get_xscale() == scale
    assert [line.get_label() for line in way.lines] == [str(value) for value in sorted(values)]
    assert all(list(line.get_xdata()) == [10, 20] for line in way.lines)
    assert len({to_hex(line.get_color()) for line in way.lines}) == len(values)


def test_what_diverged_far_away_leaves_the_others_their_room():
    accuracy, *_ = draw(list(events([1e-3, 1e-2, 1e30])), "a.b").axes
    _, cross = accuracy.lines
    assert accuracy.get_xlim()[1] < 1
    assert cross.get_xdata()[0] == accuracy.get_xlim()[1]
    assert [text.get_text() for text in accuracy.texts] == ["1e+30 diverged"]


def test_many_values_are_told_by_some_labels():
    figure = draw(list(events([k / 50 for k in range(50)], bad=None)), "a.b")
    accuracy, _, way = figure.axes
    assert accuracy.get_xscale() == "linear"
    assert len(accuracy.get_xticks()) == 8
    assert len(way.lines) == 50
    assert len(figure.legends[0].get_texts()) == 8


def test_a_log_without_evaluations_gives_no_picture(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    assert sweep_picture(tmp_path / "metrics.jsonl", "a.b") is None


def test_the_picture_is_made_from_the_log(tmp_path):
    lines = [json.dumps({"time": 1.0, **event}) for event in events([1, 2, 3])]
    training = json.dumps(
        {"step": 5, "time": 1.0, "split": "train", "learning_rate": 0.1, "a.b": 1}
    )
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join([training, *lines, ""]))
    assert sweep_picture(path, "a.b")[:8] == b"\x89PNG\r\n\x1a\n"
