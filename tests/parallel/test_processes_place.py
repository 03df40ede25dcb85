"""Where a process belongs: flags, JAX's variables, clusters as JAX detects them."""

import time

import pytest
from jax._src import clusters

from jaxtrain.config import Processes
from jaxtrain.errors import UsageError
from jaxtrain.parallel.processes import place
from jaxtrain.parallel.processes.peers import start
from jaxtrain.parallel.processes.place import Place, find_place

FLAGS = Processes(coordinator="a:1", num_processes=4, process_id=3)
VARIABLES = {
    "JAX_COORDINATOR_ADDRESS": "[::1]:80",
    "JAX_NUM_PROCESSES": "2",
    "JAX_PROCESS_ID": "1",
}
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "node[001-002]",
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
}
OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}
GKE = {"TPU_WORKER_HOSTNAMES": "localhost,host1", "TPU_WORKER_ID": "1"}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, *SLURM, *OPEN_MPI, *GKE, "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)


def cluster(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("asked", [Processes(), Processes(distributed="off")])
def test_alone(asked: Processes) -> None:
    assert find_place(asked, {}, 1) is None


def test_alone_at_no_cost() -> None:
    begun = time.perf_counter()
    with start(Processes(), 60) as peers:
        assert (peers.index, peers.count, peers.is_first) == (0, 1, True)
        assert peers.broadcast("x", "text") == "text"
        peers.agree("x", {"a": "b"})
        peers.barrier("x")
    assert time.perf_counter() - begun < 0.1


def test_flags() -> None:
    assert find_place(FLAGS, {}, 1) == Place(("a", 1), 3, 4)


def test_variables() -> None:
    assert find_place(Processes(), VARIABLES, 1) == Place(("::1", 80), 1, 2)


def test_flags_come_before_variables_and_these_before_a_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster(monkeypatch, SLURM)
    assert find_place(FLAGS, VARIABLES, 1) == Place(("a", 1), 3, 4)
    assert find_place(Processes(), VARIABLES, 1) == Place(("::1", 80), 1, 2)


def test_off_looks_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster(monkeypatch, SLURM)
    assert find_place(Processes(distributed="off"), VARIABLES, 1) is None


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (SLURM, Place(("node001", 61447), 5, 8, (1,))),
        (OPEN_MPI, Place(("10.96.0.1", 62624), 1, 2, (1,))),
    ],
)
def test_a_cluster(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: Place
) -> None:
    cluster(monkeypatch, variables)
    assert find_place(Processes(), {}, 1) == expected
    assert find_place(Processes(distributed="on"), {}, 1) == expected


def test_a_cloud_tpu_pod_keeps_all_chips_of_its_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (place.cloud_tpu_init, clusters.cloud_tpu_cluster):
        monkeypatch.setattr(module, "running_in_cloud_tpu_vm", True)
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    monkeypatch.setenv("MEGASCALE_COORDINATOR_ADDRESS", "localhost")
    monkeypatch.setenv("MEGASCALE_NUM_SLICES", "1")
    monkeypatch.setenv("MEGASCALE_SLICE_ID", "0")
    cluster(monkeypatch, GKE)
    assert find_place(Processes(), {}, 1) == Place(("localhost", 8482), 1, 2)


def test_a_part_of_the_variables_beside_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster(monkeypatch, SLURM)
    variables = {"JAX_COORDINATOR_ADDRESS": "b:2", "JAX_PROCESS_ID": ""}
    assert find_place(Processes(), variables, 1) == Place(("b", 2), 5, 8, (1,))
    found = find_place(Processes(), {"JAX_COORDINATOR_PORT": "9"}, 1)
    assert found == Place(("node001", 9), 5, 8, (1,))


def test_a_cluster_of_one_process_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster(monkeypatch, SLURM | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"})
    asked = Processes(distributed="on")
    assert find_place(asked, {}, 1) is None
    alone = Processes(coordinator="a:1", num_processes=1, process_id=0)
    assert find_place(alone, {}, 1) is None


def test_a_pod_of_kubernetes_that_is_no_job_is_one_process(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setitem(__import__("sys").modules, "kubernetes", None)
    assert find_place(Processes(), {}, 1) is None
    assert not recwarn.list


@pytest.mark.parametrize(
    ("asked", "variables", "message"),
    [
        (
            Processes(distributed="on"),
            {},
            "--distributed=on, but there is no sign of other processes: no flags, no JAX_COORD",
        ),
        (
            Processes(),
            {"JAX_COORDINATOR_ADDRESS": "a:1"},
            "are set: set JAX_NUM_PROCESSES and JAX_PROCESS_ID too, or unset the others",
        ),
        (Processes(), {"JAX_PROCESS_ID": "0"}, "set JAX_COORDINATOR_ADDRESS and JAX_NUM_PROC"),
        (Processes(), VARIABLES | {"JAX_PROCESS_ID": "x"}, "JAX_PROCESS_ID=x must be a whole"),
        (Processes(), VARIABLES | {"JAX_PROCESS_ID": "-1"}, "JAX_PROCESS_ID=-1 must be a whole"),
        (Processes(), VARIABLES | {"JAX_PROCESS_ID": "2"}, "this is process 2 of 2, but the first"),
        (
            Processes(),
            VARIABLES | {"JAX_COORDINATOR_ADDRESS": "a"},
            "JAX_COORDINATOR_ADDRESS=a must be HOST:PORT with a port between 1 and 65535",
        ),
    ],
)
def test_refused(asked: Processes, variables: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        find_place(asked, variables, 1)


def test_a_cluster_that_says_nothing_of_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster(monkeypatch, SLURM | {"SLURM_NTASKS": "many"})
    message = r"this looks like a cluster \(SlurmCluster\), but .* invalid literal .*; give --coord"
    with pytest.raises(UsageError, match=message):
        find_place(Processes(), {}, 1)
