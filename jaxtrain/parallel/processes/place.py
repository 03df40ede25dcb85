"""Which of how many processes this is: by flags, JAX's environment variables or a cluster."""

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

from jax._src import cloud_tpu_init, clusters

from jaxtrain.config import Processes
from jaxtrain.config.request import split_address
from jaxtrain.errors import UsageError, one_line

# More than any pod has: a typing error must not make lists of as many.
MOST = 2**16
COORDINATOR, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


@dataclasses.dataclass(frozen=True)
class Place:
    """A process's place among several.

    Attributes:
        address: host and port of process 0.
        index: this process.
        count: how many there are.
        devices: the accelerators that this process takes; None: all of its machine.
    """

    address: tuple[str, int]
    index: int
    count: int
    devices: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True)
class _Said:
    """What flags or variables say; None where they say nothing."""

    coordinator: str | None
    count: int | None
    index: int | None

    @property
    def missing(self) -> list[str]:
        """The names of what is not said."""
        values = {COORDINATOR: self.coordinator, COUNT: self.count, INDEX: self.index}
        return [name for name, value in values.items() if value is None]


def find_place(
    asked: Processes, environment: Mapping[str, str], timeout_seconds: float
) -> Place | None:
    """Finds this process's place; None if it is alone.

    Flags come before JAX's environment variables, and these before what the cluster says.

    Args:
        asked: what the command line says.
        environment: the environment variables.
        timeout_seconds: how long process 0's machine may take to be known by its name.

    Raises:
        UsageError: what is said is incomplete or contradicts itself, or nothing is found though
            there must be something.
    """
    if asked.distributed == "off":
        return None
    said = _Said(asked.coordinator, asked.num_processes, asked.process_id)
    if said.missing:
        coordinator = environment.get(COORDINATOR) or None
        said = _Said(coordinator, _whole(environment, COUNT), _whole(environment, INDEX))
    if not said.missing:
        return _checked(said)
    cluster = _find_cluster()
    if cluster is not None:
        return _place_in(cluster, said, environment, timeout_seconds)
    if len(said.missing) < 3:
        raise UsageError(
            f"not all of {COORDINATOR}, {COUNT} and {INDEX} are set: set "
            f"{' and '.join(said.missing)} too, or unset the others"
        )
    if asked.distributed == "on":
        raise UsageError(
            "--distributed=on, but there is no sign of other processes: no flags, no "
            f"{COORDINATOR}, and JAX finds no cluster (Cloud TPU, Slurm, Open MPI, or Kubernetes "
            "with the package kubernetes installed); give --coordinator, --num_processes and "
            "--process_id, or drop --distributed=on"
        )
    return None


def _whole(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name) or None
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"{name}={text} must be a whole number")
    return int(text)


def _checked(said: _Said, devices: tuple[int, ...] | None = None) -> Place | None:
    """The place, if it is one among several."""
    assert said.coordinator is not None
    assert said.count is not None
    assert said.index is not None
    if said.count > MOST:
        raise UsageError(f"{COUNT}={said.count} must be at most {MOST}")
    if said.index >= said.count:
        raise UsageError(
            f"this is process {said.index} of {said.count}, but the first is 0; see {INDEX} and "
            f"{COUNT}"
        )
    try:
        address = split_address(said.coordinator)
    except ValueError as error:
        raise UsageError(f"{COORDINATOR}={said.coordinator} {error}") from error
    return None if said.count == 1 else Place(address, said.index, said.count, devices)


def _find_cluster() -> Any:
    """JAX's class for the kind of cluster that this process runs in; None if in none."""
    kinds = [kind for kind in clusters.ClusterEnv._cluster_types if not kind.opt_in_only_method]
    with warnings.catch_warnings(action="ignore"):  # about Kubernetes, of which a pod is no sign
        for kind in kinds:
            try:
                if kind.is_env_present():
                    return kind
            except Exception as error:  # each kind fails in its own way
                raise _unusable(kind, error) from error
    return None


def _place_in(
    cluster: Any, said: _Said, environment: Mapping[str, str], timeout_seconds: float
) -> Place | None:
    """The place that a cluster says, where nothing else says it."""
    try:
        count = said.count or cluster.get_process_count()
        if count == 1:
            return None
        index = cluster.get_process_id() if said.index is None else said.index
        coordinator = said.coordinator or cluster.get_coordinator_address(
            timeout_secs=int(timeout_seconds),
            override_coordinator_port=environment.get("JAX_COORDINATOR_PORT"),
        )
        # As JAX has it: one process a device where a cluster starts several on a machine.
        local = None
        if not cloud_tpu_init.running_in_cloud_tpu_vm:
            local = cluster.get_local_process_id()
    except Exception as error:  # each kind fails in its own way
        raise _unusable(cluster, error) from error
    return _checked(_Said(coordinator, count, index), None if local is None else (local,))


def _unusable(kind: Any, error: Exception) -> UsageError:
    return UsageError(
        f"this looks like a cluster ({kind.__name__}), but what its processes are cannot be found "
        f"out: {one_line(error)[:300]}; give --coordinator, --num_processes and --process_id, or "
        "--distributed=off"
    )
