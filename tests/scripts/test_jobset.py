"""`scripts/jobset.yaml`: a JobSet of v1alpha2, and what its policies make of a status."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxtrain.cli.words import read_words

PATH = Path(__file__).resolve().parents[2] / "scripts" / "jobset.yaml"
JOBSET: dict[str, Any] = yaml.safe_load(PATH.read_text())
SPEC = JOBSET["spec"]
(REPLICATED,) = SPEC["replicatedJobs"]
JOB = REPLICATED["template"]["spec"]
POD = JOB["template"]["spec"]
(CONTAINER,) = POD["containers"]

# The fields that each object may have; those with a star it must have. From the Go types of JobSet
# (api/jobset/v1alpha2) and of Kubernetes (batch/v1, core/v1), as far as this file goes.
FIELDS = {
    (): "apiVersion* kind* metadata* spec*",
    ("metadata",): "name* annotations labels namespace",
    ("spec",): "network failurePolicy successPolicy replicatedJobs* suspend coordinator "
    "ttlSecondsAfterFinished",
    ("spec", "network"): "enableDNSHostnames subdomain publishNotReadyAddresses",
    ("spec", "failurePolicy"): "maxRestarts restartStrategy rules",
    ("spec", "failurePolicy", "rules"): "name* action* onJobFailureReasons "
    "onJobFailureMessagePatterns targetReplicatedJobs",
    ("spec", "replicatedJobs"): "name* template* replicas groupName dependsOn",
    ("spec", "replicatedJobs", "template"): "metadata spec*",
}
UNDER_JOB = {
    (): "parallelism* completions* completionMode* backoffLimit* podFailurePolicy* template* "
    "activeDeadlineSeconds ttlSecondsAfterFinished podReplacementPolicy",
    ("podFailurePolicy",): "rules*",
    ("podFailurePolicy", "rules"): "action* onExitCodes onPodConditions",
    ("podFailurePolicy", "rules", "onExitCodes"): "containerName operator* values*",
    ("podFailurePolicy", "rules", "onPodConditions"): "type* status*",
    ("template",): "metadata spec*",
    ("template", "spec"): "restartPolicy* terminationGracePeriodSeconds serviceAccountName "
    "nodeSelector* containers* tolerations volumes",
    ("template", "spec", "containers"): "name* image* args command env ports resources* "
    "volumeMounts",
    ("template", "spec", "containers", "ports"): "containerPort* name protocol",
    ("template", "spec", "containers", "resources"): "requests* limits*",
}


def find(place: Any, path: tuple[str, ...]) -> list[Any]:
    """All objects at a path; lists stand for each of their items."""
    for i, key in enumerate(path):
        if isinstance(place, list):
            return [found for item in place for found in find(item, path[i:])]
        if key not in place:
            return []
        place = place[key]
    return place if isinstance(place, list) else [place]


@pytest.mark.parametrize(
    ("start", "path", "fields"),
    [
        *((JOBSET, path, fields) for path, fields in FIELDS.items()),
        *((JOB, path, fields) for path, fields in UNDER_JOB.items()),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else "",
)
def test_objects_have_fields_that_exist_and_those_they_need(
    start: Any, path: tuple[str, ...], fields: str
) -> None:
    found = find(start, path)
    assert found
    for item in found:
        assert set(item) <= set(fields.replace("*", "").split())
        assert set(item) >= {name[:-1] for name in fields.split() if name.endswith("*")}


def test_values_are_of_the_kinds_and_sets_that_the_interface_takes() -> None:
    assert JOBSET["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    assert JOBSET["kind"] == "JobSet"
    # Pods are called NAME-slice-0-3, which has to be the label of a host.
    for name in (JOBSET["metadata"]["name"], REPLICATED["name"], CONTAINER["name"]):
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", name)
    policy = SPEC["failurePolicy"]
    assert policy["restartStrategy"] in ("Recreate", "BlockingRecreate", "InPlaceRestart")
    for rule in policy["rules"]:
        assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"])
        assert rule["action"] in (
            "FailJobSet",
            "RestartJobSet",
            "RestartJobSetAndIgnoreMaxRestarts",
        )
        assert set(rule["onJobFailureReasons"]) <= {
            "BackoffLimitExceeded",
            "DeadlineExceeded",
            "PodFailurePolicy",
            "FailedIndexes",
            "MaxFailedIndexesExceeded",
        }
    assert POD["restartPolicy"] == "Never", "what a podFailurePolicy asks for"
    for rule in JOB["podFailurePolicy"]["rules"]:
        assert rule["action"] in ("FailJob", "FailIndex", "Ignore", "Count")
        assert ("onExitCodes" in rule) != ("onPodConditions" in rule)
        if "onExitCodes" in rule:
            values = rule["onExitCodes"]["values"]
            assert values == sorted(set(values)), "they have to be in order"
            assert rule["onExitCodes"]["operator"] in ("In", "NotIn")
            assert rule["onExitCodes"]["containerName"] == CONTAINER["name"]
    for condition in find(JOB, ("podFailurePolicy", "rules", "onPodConditions")):
        assert condition == {"type": "DisruptionTarget", "status": "True"}, "a string, no boolean"


def becomes(status: int, disrupted: bool = False) -> str:
    """What the two policies do after the first pod has ended with a status, as documented."""
    if status == 0:
        return "complete"
    reason = "BackoffLimitExceeded"
    for rule in JOB["podFailurePolicy"]["rules"]:
        if "onPodConditions" in rule:
            matches = disrupted
        else:
            inside = status in rule["onExitCodes"]["values"]
            matches = inside == (rule["onExitCodes"]["operator"] == "In")
        if matches:
            assert JOB["backoffLimit"] == 0, "so that one that counts fails the job"
            reason = {"Count": reason, "FailJob": "PodFailurePolicy"}[rule["action"]]
            break
    for rule in SPEC["failurePolicy"]["rules"]:
        if reason in rule["onJobFailureReasons"]:
            return rule["action"]
    return "RestartJobSet"


def test_stopped_or_left_by_a_peer_restarts_and_all_else_fails() -> None:
    assert {status: becomes(status) for status in (7, 75)} == {
        7: "RestartJobSet",
        75: "RestartJobSet",
    }
    assert {becomes(status) for status in (1, 2, 3, 4, 5, 6, 130, 137, 143)} == {"FailJobSet"}
    assert becomes(137, disrupted=True) == becomes(75, disrupted=True) == "RestartJobSet"
    assert SPEC["failurePolicy"]["maxRestarts"] > 0


def test_there_is_one_pod_on_each_host_of_the_slice_with_a_name_in_the_network() -> None:
    selector = POD["nodeSelector"]
    chips = math.prod(map(int, selector["cloud.google.com/gke-tpu-topology"].split("x")))
    each = CONTAINER["resources"]["limits"]["google.com/tpu"]
    assert CONTAINER["resources"]["requests"] == CONTAINER["resources"]["limits"]
    assert JOB["parallelism"] == JOB["completions"] == chips // each
    assert JOB["completionMode"] == "Indexed"
    assert SPEC["network"]["enableDNSHostnames"] is True


def test_the_arguments_are_those_of_jaxtrain() -> None:
    read_words(CONTAINER["args"])
