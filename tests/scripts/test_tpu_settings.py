"""Flags and environment of `scripts/tpu.sh`, and their errors."""

import re
import subprocess

import pytest
from scripts.cloud import TPU, Cloud, error


class TestSettings:
    def test_help_names_every_flag_of_a_verb_and_asks_nothing(self, cloud: Cloud) -> None:
        everything = cloud("--help")
        flags = set(re.findall(r"^  --(\w+)", everything.stdout, re.M))
        assert {"name", "zone", "spot", "queued", "retries", "dry_run"} <= flags
        assert (everything.returncode, everything.stderr) == (0, "")
        of_a_verb = set()
        for verb in ("create", "setup", "train", "status", "logs", "stop", "delete"):
            done = cloud(verb, "--help", TPU_NAME="", TPU_ZONE="")
            assert (done.returncode, done.stderr) == (0, "")
            assert f"\n  {verb} " in done.stdout
            assert "  --zone " in done.stdout
            of_a_verb |= set(re.findall(r"^  --(\w+)", done.stdout, re.M))
            assert max(map(len, done.stdout.splitlines())) <= 100
        assert of_a_verb == flags
        assert "--retries" not in cloud("stop", "--help").stdout
        assert cloud.calls() == []

    def test_every_flag_is_taken_from_the_environment_and_a_flag_wins(self, cloud: Cloud) -> None:
        """The commands are those that the flags make."""
        (cloud.folder / "a b.py").touch()
        (cloud.folder / "m.py").touch()
        flags = {
            "name": "other",
            "zone": "us-east1-c",
            "project": "p",
            "accelerator_type": "v6e-8",
            "runtime_version": "mine",
            "network": "net",
            "internal_ip": "true",
            "spot": "true",
            "queued": "true",
            "create_flags": "--labels=a=b",
            "extras": "gcs",
            "config": "a b.py",
            "files": "m.py",
            "workdir": "gs://b/a b",
            "follow": "true",
            "worker": "all",
            "force": "true",
            "stop_seconds": "9",
            "dry_run": "true",
        }
        environment = {f"TPU_{name.upper()}": value for name, value in flags.items()}
        for verb in ("create", "setup", "train", "status", "logs", "stop", "delete"):
            by_environment = cloud(verb, **environment)
            assert by_environment.returncode == 0, by_environment.stderr
            help_text = cloud(verb, "--help").stdout
            words = [f"--{k}={v}" for k, v in flags.items() if f"  --{k} " in help_text]
            wrong = {name: "wrong" for name in environment if name[4:].lower() not in words}
            by_flags = cloud(verb, *words, **{**wrong, **not_of(verb, flags, help_text)})
            assert by_flags.stdout == by_environment.stdout, by_flags.stderr
            assert "other" in by_flags.stdout
            assert "us-east1-c" in by_flags.stdout
        # Those that no command shows are seen where they are wrong.
        for name in ("wait_minutes", "poll_seconds", "lost_seconds", "retries", "recreate"):
            assert f"{name}=x is not" in cloud("train", **{f"TPU_{name.upper()}": "x"}).stderr

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ([], "no verb; it is one of create, setup, train, status, logs, stop, delete"),
            (["make"], "make is no verb; it is one of create"),
            (["stop", "now"], "now is no flag; write --FLAG=VALUE"),
            (["train", "--config.seed=3"], "--config.seed is no flag; see tpu.sh train --help"),
            (["train", "--dry-run"], "--dry-run is no flag"),
            (["stop", "--retries=3"], "--retries is read by train, not by stop; leave it out"),
            (["stop", "--", "x"], "-- x: only train takes arguments for jaxtrain, not stop"),
            (["stop", "--name"], "--name has no value; write --name=VALUE"),
            (["stop", "--name="], "no name; write --name=NAME or set TPU_NAME"),
            (["stop", "--name=My_Pod"], "name=My_Pod is no name for a VM; use small letters"),
            (["stop", "--zone="], "no zone; write --zone=ZONE or set TPU_ZONE"),
            (["stop", "--force=yes"], "force=yes is not true or false"),
            (["train", "--retries=-1"], "retries=-1 is not a whole number; write retries=0"),
            (["logs", "--worker=x"], "worker=x is not a whole number; write worker=0"),
            (["setup", "--extras=a b"], "extras=a b is no list of extras; write extras=tpu,gcs"),
            (["setup", "--config=my/no.py"], "my/no.py is no file here; mend --config or --files"),
            (["train"], "nothing to train; write --config=FILE or --workdir=DIR"),
            (["create"], "no accelerator_type; write --accelerator_type=TYPE"),
            (
                ["create", "--accelerator_type=v9-8"],
                "accelerator_type=v9-8 is not known here; write --runtime_version=VERSION as well",
            ),
            (
                ["create", "--accelerator_type=tpu7x-8"],
                "accelerator_type=tpu7x-8 has no TPU VMs; use scripts/jobset.yaml on GKE",
            ),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_an_error_is_one_line_with_the_value_and_the_fix(
        self, cloud: Cloud, words: list[str], message: str
    ) -> None:
        assert error(cloud(*words), 2).startswith(message)
        assert cloud.calls() == []

    @pytest.mark.parametrize(
        ("accelerator", "version"),
        [
            ("v2-8", "tpu-ubuntu2204-base"),
            ("v4-32", "tpu-ubuntu2204-base"),
            ("v5litepod-4", "v2-alpha-tpuv5-lite"),
            ("v5p-8", "v2-alpha-tpuv5"),
            ("v6e-16", "v2-alpha-tpuv6e"),
        ],
    )
    def test_software_that_goes_with_the_accelerator(
        self, cloud: Cloud, accelerator: str, version: str
    ) -> None:
        done = cloud("create", "--dry_run", f"--accelerator_type={accelerator}")
        assert f" --version={version}\n" in done.stdout

    def test_no_gcloud_is_said(self, cloud: Cloud) -> None:
        (cloud.folder / "bin" / "gcloud").unlink()
        tools = cloud.folder / "tools"
        tools.mkdir()
        for tool in ("bash", "cut", "paste", "sed", "dirname", "env"):
            (tools / tool).symlink_to(f"/usr/bin/{tool}")
        done = subprocess.run(
            ["/usr/bin/bash", str(TPU), "status"],
            env={"PATH": str(tools), "TPU_NAME": "pod", "TPU_ZONE": "z"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert error(done, 2) == "gcloud is not on the PATH; install the Google Cloud CLI"


def not_of(verb: str, flags: dict[str, str], help_text: str) -> dict[str, str]:
    """Values by environment of the flags that a verb does not have."""
    return {f"TPU_{k.upper()}": v for k, v in flags.items() if f"  --{k} " not in help_text}
