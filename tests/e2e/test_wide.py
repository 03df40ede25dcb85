"""A model that is worth splitting: its two large kernels over two devices each."""

import base64
import json
import shutil

import pytest
from e2e.command import Command, read_metrics, saved_steps, steps_of

WORDS = [
    "--config=digits.py",
    "--config.model.mlp.hidden_sizes=10000,10000",
    "--config.model.mlp.dropout=0.0",
    "--config.parallel.mesh=data=4,model=2",
    "--config.parallel.rules=tensor",
    "--config.optimizer.name=sgd",  # without momentum, so that no moments take memory
    "--config.data.holdout=100",
    "--config.train.batch_size=16",
    "--config.train.steps=2",
    "--config.report.every_steps=1",
    "--config.eval.batch_size=104",
    "--config.eval.every_steps=0",
    "--config.checkpoint.every_steps=0",
    "--config.checkpoint.keep=1",
    "--workdir=wide",
]


# Under load it takes several times as long as alone.
MINUTES = 10


@pytest.mark.slow
def test_a_wide_mlp_trains_split_over_two_devices(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every device has half of 108 million parameters; all together take 7 GB, a minute long."""
    monkeypatch.setattr("e2e.command.TIMEOUT_SECONDS", 60 * MINUTES)
    workdir = command.folder / "wide"
    try:
        done = command.result("train", *WORDS, devices=8)
        assert (done["step"], done["eval"]["count"]) == (2, 100)
        assert steps_of(workdir, "train") == [1, 2]
        # Ten classes by chance: ln(10) = 2.3.
        assert all(2 < event["loss"] < 3 for event in read_metrics(workdir))
        assert saved_steps(workdir) == [2]
        lies = json.loads((workdir / "checkpoints" / "2" / "model" / "_sharding").read_text())
        kernel = json.loads(lies[base64.b64encode(b"params.hidden_1.kernel").decode()])
        assert kernel["partition_spec"] == [None, "model"]
    finally:
        shutil.rmtree(workdir, ignore_errors=True)
