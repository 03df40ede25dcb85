"""What runs in a shell has no mistakes that shellcheck knows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [*ROOT.glob("scripts/**/*.sh"), *ROOT.glob("scripts/*.sbatch"), ROOT / ".ci" / "run"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_clean(script: Path) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("shellcheck"), "--external-sources", script],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout


def test_what_a_person_starts_can_be_started() -> None:
    started = {"launch_local.sh", "run", "slurm.sbatch", "tpu.sh"}
    assert {path.name for path in SCRIPTS if os.access(path, os.X_OK)} == started
    for path in SCRIPTS:
        if path.name not in ("settings.sh", "gcloud.sh"):  # which tpu.sh reads
            assert path.read_text().startswith("#!/usr/bin/env bash\n")
