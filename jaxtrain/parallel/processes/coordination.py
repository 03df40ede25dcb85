"""JAX's own coordination service, through which its backends and Orbax find the other processes."""

import contextlib
import math
import os
import socket
from collections.abc import Iterator

import jax
from jax._src import distributed

from jaxtrain.parallel.processes import relay
from jaxtrain.parallel.processes.place import Place

# JAX is not to end a process before we do, who can say why.
LEAST_SECONDS, SHUTDOWN_SECONDS = 100, 60
NO_PROXY = "no_grpc_proxy"


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A port of this machine alone that nothing but JAX's service gets until the block ends."""
    with socket.socket() as holder:
        # As gRPC sets it, so that its socket and this one, which does not listen, may both have it.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((relay.LOOPBACK, 0))
        port: int = holder.getsockname()[1]
        yield port


def _keep_proxies_out() -> None:
    """Lets gRPC connect to this machine directly where HTTP proxies are set, of which JAX warns."""
    jax.config.update("jax_check_proxy_envs", False)
    others = os.environ.get(NO_PROXY) or os.environ.get("no_proxy")
    os.environ[NO_PROXY] = ",".join(filter(None, [others, relay.LOOPBACK]))


class CoordinationService:
    """This process's part in the service; process 0 also runs it.

    Must be made before JAX finds its devices.

    Args:
        port: where the service answers on this machine.
        place: this process.
        timeout_seconds: within which we say that a process is lost.
    """

    def __init__(self, port: int, place: Place, timeout_seconds: float) -> None:
        # It takes the signals that `StopRequest` is for.
        jax.config.update("jax_enable_preemption_service", False)
        _keep_proxies_out()
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        patience_seconds = max(LEAST_SECONDS, math.ceil(2 * timeout_seconds))
        address = f"{relay.LOOPBACK}:{port}"
        jax.distributed.initialize(
            coordinator_address=address,
            coordinator_bind_address=address,
            num_processes=place.count,
            process_id=place.index,
            local_device_ids=place.devices,
            cluster_detection_method="deactivate",
            initialization_timeout=patience_seconds,
            heartbeat_timeout_seconds=patience_seconds,
            shutdown_timeout_seconds=SHUTDOWN_SECONDS,
        )
        # Taken from JAX, which would end it as soon as this process has left.
        self._service = distributed.global_state.service
        distributed.global_state.service = None

    def leave(self) -> None:
        """Leaves when all do; the service goes on."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # who is lost is said elsewhere
            jax.distributed.shutdown()

    def close(self) -> None:
        """Ends the service, if it is here and all others have left."""
        if self._service is not None:
            self._service.shutdown()
