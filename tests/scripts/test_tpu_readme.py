"""README's chapter on Cloud TPU, word for word, with the stand-in for gcloud and for the bucket."""

import json
import re
import shlex
from pathlib import Path

import pytest
from scripts.cloud import ROOT, Cloud, checkout

pytestmark = pytest.mark.slow


def commands() -> tuple[dict[str, str], list[list[str]]]:
    """The variables and the commands of tpu.sh that README has."""
    readme = (ROOT / "README.md").read_text()
    (block,) = re.findall(r"\*\*Cloud TPU\*\*.*?```sh\n(.*?)```", readme, re.DOTALL)
    first, *others = [shlex.split(line) for line in block.splitlines()]
    assert first[0] == "export"
    assert all(words[0] == "scripts/tpu.sh" for words in others)
    return dict(word.split("=", 1) for word in first[1:]), [words[1:] for words in others]


def test_what_readme_says_trains_on_four_workers(tmp_path: Path) -> None:
    script = checkout(tmp_path / "checkout", everything=True)
    recipe = tmp_path / "checkout" / "configs" / "mnist_mlp.py"
    text = recipe.read_text()
    assert text.count("epochs = 10") == 1
    recipe.write_text(text.replace("epochs = 10", "epochs = 5"))  # half as long
    pod = Cloud(tmp_path / "cloud", 4, script)
    variables, calls = commands()
    bucket = tmp_path / "bucket"
    assert [words[0] for words in calls] == ["create", "setup", "train", "delete"]
    assert "gs://BUCKET" in shlex.join(calls[2])
    try:
        for words in calls:
            local = [word.replace("gs://BUCKET", str(bucket)) for word in words]
            # The workers have what jaxtrain needs already.
            done = pod(*local, cwd=script.parents[1], TPU_EXTRAS="", **variables)
            assert done.returncode == 0, done.stdout + done.stderr
    finally:
        pod.clean_up()
    result = json.loads((bucket / "mnist" / "result.json").read_text())
    assert result["eval"]["count"] == 10000
    assert result["eval"]["accuracy"] > 0.97
    assert not pod.get("exists")
