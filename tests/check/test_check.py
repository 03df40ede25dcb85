"""What `check` says of meshes, hosts and evaluations; eight CPU devices are here."""

import json
from pathlib import Path

import pytest
from image_files import write_half_jpeg, write_image

from jaxtrain import data
from jaxtrain.check import check
from jaxtrain.check.text import topology_lines
from jaxtrain.cli.requests import check_request
from jaxtrain.cli.words import read_words
from jaxtrain.errors import DataError, UsageError

WIDE = ["--config.model.mlp.hidden_sizes=10000,10000", "--config.train.batch_size=64"]
TENSOR = ["--config.parallel.mesh=data=-1,model=2", "--config.parallel.rules=tensor"]
FSDP = ["--config.parallel.mesh=fsdp=-1", "--config.parallel.rules=fsdp"]


def request(*words):
    _, given = read_words(["check", "--config=mnist_mlp", *words])
    return check_request(given)


def said(*words):
    """The report's lines, at least one; and what `--json` says."""
    text, status = check(request(*words))
    told, same_status = check(request(*words, "--json"))
    report = json.loads(told)
    assert status == same_status == (0 if report["ok"] else 2)
    return text.splitlines(), report


def field(lines, name):
    """The lines of one field of the report, without its name."""
    first = next(n for n, line in enumerate(lines) if line.startswith(f"{name} "))
    last = next(n for n in range(first + 1, len(lines)) if lines[n][:1] != " ")
    return [line[12:] for line in lines[first:last]]


def test_a_model_that_is_split_over_devices():
    lines, report = said(*WIDE, *TENSOR)
    assert field(lines, "devices") == [
        "8 (data=4, model=2): 16 images a step on each; up to 10 steps in one go"
    ]
    assert report["devices"]["mesh"] == {"data": 4, "fsdp": 1, "model": 2}
    shown = field(lines, "layout")
    assert shown[0].split() == ["parameter", "shape", "split", "bytes", "on", "each", "device"]
    rows = {line.split()[0]: line.split()[1:] for line in shown[1:7]}
    assert rows["hidden_1/kernel"] == ["10000x10000", "-,model", "200,000,000"]
    assert rows["hidden_0/bias"] == ["10000", "model", "20,000"]
    assert shown[8:13] == [
        "hidden_1/kernel (-,model): 2 parts of 10000x5000, on devices",
        "     0-4999     5000-9999",
        " ┌────────────┬────────────┐",
        " │ 0, 2, 4, 6 │ 1, 3, 5, 7 │",
        " └────────────┴────────────┘",
    ]
    assert shown[13] == "batch (data,-,-,-): 4 parts of 16x28x28x1, on devices"
    assert [line.strip() for line in shown[15:19]] == [
        "0-15 │ 0-1 │",
        "16-31 │ 2-3 │",
        "32-47 │ 4-5 │",
        "48-63 │ 6-7 │",
    ]
    assert max(map(len, shown)) <= 68
    weights = [784 * 10000, 10000, 10000 * 10000, 10000, 10000 * 10, 10]
    assert report["memory"]["parameters"] == sum(weights) * 4 // 2
    # Adam: two numbers a parameter, and a counter.
    assert report["memory"]["optimizer"] == sum(weights) * 4 + 4
    assert report["memory"]["activations"] is None
    assert report["model"]["parameter_bytes"] == sum(weights) * 4
    kernel = {one["name"]: one for one in report["model"]["arrays"]}["hidden_1/kernel"]
    assert (kernel["split"], kernel["bytes_each"]) == ([[], ["model"]], 200_000_000)
    weight, batch = report["layout"]["weight"], report["layout"]["batch"]
    assert (weight["name"], weight["devices"]) == (
        "hidden_1/kernel",
        [[[0, 2, 4, 6], [1, 3, 5, 7]]],
    )
    assert (batch["part"], batch["devices"][3]) == ([16, 28, 28, 1], [[6, 7]])


def test_a_model_that_is_on_every_device():
    lines, report = said()
    assert field(lines, "layout")[:2] == [
        "every parameter is replicated",
        "batch (data,-,-,-): 8 parts of 16x28x28x1, on devices",
    ]
    assert report["memory"]["parameters"] == report["model"]["parameter_bytes"]
    assert not [line for line in lines if line.startswith("hosts")]


def test_one_device_has_no_layout():
    lines, report = said("--devices=1")
    assert not [line for line in lines if line.startswith(("layout", "hosts"))]
    assert field(lines, "devices")[0].startswith("1: 128 images a step on each")
    assert report["layout"]["batch"]["devices"] == [[[0]]]


def test_a_pod():
    words = ["--config.model.mlp.hidden_sizes=4096,4096", "--config.train.batch_size=1024"]
    lines, report = said("--devices=256", "--hosts=32", *words, *FSDP)
    assert field(lines, "devices")[0].startswith("256 (fsdp=256): 4 images a step on each")
    assert field(lines, "hosts") == ["32 of 8 devices: 32 of a step's 1,024 images on each"]
    assert report["hosts"] == {"count": 32, "devices_each": 8, "rows": [32] * 32}
    shown = field(lines, "layout")
    assert max(map(len, shown)) <= 68
    assert len(shown) < 40
    assert report["layout"]["weight"]["split"] == [[], ["fsdp"]]
    # The 10 biases of the head do not divide.
    assert report["memory"]["parameters"] == 4 * (
        (784 * 4096 + 4096 * 4096 + 4096 * 10 + 2 * 4096) // 256 + 10
    )


@pytest.mark.parametrize(
    ("mesh", "hosts", "rows", "text"),
    [
        ("data=-1", 8, [16] * 8, "8 of 4 devices: 16 of a step's 128 images on each"),
        # Both hosts of a row of eight devices along `model` hold the same images.
        ("data=4,model=8", 8, [32] * 8, "8 of 4 devices: 32 of a step's 128 images on each, some"),
        ("data=16,model=2", 1, [128], None),
    ],
)
def test_rows_of_each_host(mesh, hosts, rows, text):
    rules = "tensor" if "model" in mesh else "replicated"
    words = [f"--config.parallel.mesh={mesh}", f"--config.parallel.rules={rules}"]
    lines, report = said("--devices=32", f"--hosts={hosts}", *words)
    assert report["hosts"]["rows"] == rows
    assert [line for line in lines if line.startswith("hosts")] == (
        [] if text is None else [f"hosts       {text}" + " on several" * text.endswith("some")]
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--devices=1"], "10,000 images in 10 batches of 1,000"),
        (
            ["--devices=32"],
            "10,000 images in 10 batches of 1,024, of which 240 rows of the last are padding",
        ),
        (["--config.eval.batch_size=20000"], "10,000 images in 1 batch of 10,000"),
    ],
)
def test_batches_of_an_evaluation(words, text):
    lines, report = said(*words)
    assert field(lines, "evaluation") == [text]
    told = report["evaluation"]
    assert told["batches"] * told["rows"] == told["examples"] + told["padding"]
    assert told["rows_each"] * report["devices"]["count"] == told["rows"]


def test_a_scan_beside_a_holdout():
    words = ["--config.data.source=synthetic", "--config.data.synthetic.examples=300"]
    lines, report = said(
        *words, "--config.data.holdout=100", "--config.schedule.warmup_steps=0", "--scan"
    )
    assert report["ok"]
    assert report["scan"]["examples"] == {"train": 300}
    assert field(lines, "scan")[0].startswith("read 300 of train: all decode")


def test_an_error_of_the_scan_is_the_verdict(monkeypatch):
    def refuse(*_):
        raise DataError("the disk is gone")

    monkeypatch.setattr(data, "scan", refuse)
    text, status = check(request("--scan", "--json"))
    report = json.loads(text)
    assert status == 3
    assert report["verdict"] == "would fail: the disk is gone"
    assert "scan" not in report


def test_a_scan_lists_all_bad_files_where_one_is_missing(tmp_path):
    for label in "ab":
        for number in range(3):
            write_image(tmp_path / label / f"{number}.png", number)
    (tmp_path / "a/gone.png").symlink_to(tmp_path / "nowhere.png")
    write_half_jpeg(tmp_path / "b/half.jpg")
    words = [f"--config.data.path={tmp_path}", "--config.data.image_size=8"]
    lines, report = said("--config.data.source=folder", *words, "--scan")
    bad = [Path(one["place"]).name for one in report["scan"]["bad"]]
    assert sorted(bad) == ["gone.png", "half.jpg"]
    assert "a/gone.png" in report["verdict"]
    assert [line.split()[0] for line in lines if line[0] != " "] == ["scan", "verdict"]


def test_what_does_not_divide_is_the_verdict():
    lines, report = said("--devices=256")
    assert len(lines) == 1
    assert report["verdict"].startswith(
        "would fail: train.batch_size=128 does not divide over 256 devices"
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--devices=32", "--hosts=5"], "--devices=32 does not divide over --hosts=5"),
        (["--hosts=2"], "--hosts=2 needs --devices=N"),
        (["--devices=8", "--topology=v5e:2x4"], "drop --devices"),
        (["--devices=8", "--hosts=0"], "must be a whole number, 1 or more"),
    ],
)
def test_flags_that_do_not_go_together(words, text):
    with pytest.raises(UsageError, match=text):
        request(*words)


def test_flops_of_accumulated_parts():
    """The compiler counts one turn of a loop."""
    step = {
        "name": "v5e:2x2",
        "device_kind": "TPU v5 lite",
        "seconds": 6.2,
        "memory": {
            "total": 1500,
            "arguments": 1000,
            "temporaries": 400,
            "outputs": 900,
            "aliased": 800,
        },
        "flops": 12345.0,
        "flops_parts": 4,
        "collectives": [],
    }
    assert topology_lines(step) == [
        "topology    v5e:2x2 (TPU v5 lite): compiled in 6 s; on each device:",
        "            1,500 bytes: arguments 1,000, temporaries 400,",
        "            outputs 900, of which 800 in the arguments' place",
        "            12,345 FLOPs for one of a step's 4 parts and the update",
        "            no collectives",
    ]


SMALL = ["--config.model.mlp.hidden_sizes=4,5"]


def test_what_each_rule_matches_is_said():
    decay = ["--config.optimizer.name=adamw", "--config.optimizer.weight_decay=0.1"]
    lines, report = said(*SMALL, *decay, "--config.optimizer.rate_rules=head=10; hidden_0=0; .*=1")
    assert field(lines, "rules") == [
        "optimizer.decay_rules  factor  matches",
        "kernel                      1  3 parameters: head/kernel, hidden_0/kernel, "
        "hidden_1/kernel",
        ".*                          0  3 parameters: head/bias, hidden_0/bias, hidden_1/bias",
        "optimizer.rate_rules  factor  matches",
        "head                      10  2 parameters: head/bias, head/kernel",
        "hidden_0                   0  2 parameters: hidden_0/bias, hidden_0/kernel",
        ".*                         1  2 parameters: hidden_1/bias, hidden_1/kernel",
    ]
    assert field(lines, "frozen") == ["2 parameters: hidden_0/bias, hidden_0/kernel"]
    trained = 4 * 5 + 5 + 5 * 10 + 10
    assert report["model"]["trained_parameters"] == trained
    assert f"({trained} of them trained)" in field(lines, "model")[0]
    assert report["memory"]["optimizer"] == 2 * 4 * trained + 4
    assert report["rules"]["optimizer.rate_rules"][0] == {
        "pattern": "head",
        "factor": 10.0,
        "parameters": ["head/bias", "head/kernel"],
    }
    assert report["frozen"]["parameters"] == ["hidden_0/bias", "hidden_0/kernel"]


def test_a_frozen_backbone_is_said():
    resnet = ["--config.model.name=resnet8", "--config.model.freeze=backbone"]
    lines, report = said(*resnet)
    frozen = report["frozen"]["parameters"]
    assert field(lines, "frozen") == [
        f"{len(frozen)} parameters: {', '.join(frozen[:4])} and {len(frozen) - 4} more",
        "batch statistics",
    ]
    assert not [name for name in frozen if name.startswith("head/")]
    assert report["model"]["trained_parameters"] == 64 * 10 + 10


def test_of_rules_that_change_nothing_nothing_is_said():
    lines, report = said(*SMALL)
    assert report["rules"] == {}
    assert report["frozen"] == {"parameters": [], "batch_stats": False}
    assert not [line for line in lines if line.startswith(("rules", "frozen"))]
    assert "of them trained" not in field(lines, "model")[0]


def test_replicas_are_said():
    lines, report = said(*SMALL, "--config.train.replicas=3", "--config.eval.batch_size=30")
    one_lines, one = said(*SMALL, "--config.eval.batch_size=10")
    assert field(lines, "replicas") == ["3 (vmapped): seed 0, 1, 2"]
    assert field(lines, "model") == field(one_lines, "model")
    assert report["memory"]["parameters"] == 3 * one["memory"]["parameters"]
    assert report["devices"]["rows_each"] == 3 * one["devices"]["rows_each"]
    assert report["evaluation"] == one["evaluation"]
    assert one["replicas"] is None


def test_a_sweep_is_said():
    keys = ("--config.schedule.name=cosine", "--config.train.replicate=schedule.warmup_steps=2,4")
    lines, report = said(*SMALL, *keys, "--config.train.export_replica=1")
    assert field(lines, "replicas") == ["2 (vmapped): schedule.warmup_steps 2, 4"]
    assert report["schedule"]["highest"] == pytest.approx(4e-3)
    assert report["devices"]["rows_each"] == said(*SMALL)[1]["devices"]["rows_each"]
    decays = "--config.train.replicate=optimizer.weight_decay=0,0.1"
    assert field(said(*SMALL, decays)[0], "replicas") == [
        "2 (one after the other): optimizer.weight_decay 0, 0.1"
    ]
