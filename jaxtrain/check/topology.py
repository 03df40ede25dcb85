"""The real step, compiled on this CPU for TPUs that are not here."""

import dataclasses
import os
import re
import sys
import time
from collections.abc import Sequence
from concurrent import futures

import jax
from jax.experimental import topologies

from jaxtrain import feed
from jaxtrain.check.collectives import Collectives, collectives
from jaxtrain.errors import UsageError, one_line
from jaxtrain.report import open_console
from jaxtrain.setup import Run

_EXAMPLES = "v5e:4x8, v6e:2x4, v5p:2x2x4 or v4:2x2x2"

# Else the compiler looks for the TPUs of the machine that it is on, in vain and with many words,
# keeps a log in /tmp, and refuses to be loaded by two processes.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_LOG_DIR": "disabled",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """What one device needs for a step.

    Attributes:
        seconds: that it took to compile.
        argument_bytes: what goes in: the state, the batch and examples that stay on the device.
        output_bytes: what comes out.
        alias_bytes: what comes out in the place of what went in.
        temporary_bytes: what is needed in between: activations and gradients.
        flops: floating-point operations, by the compiler's count; of a loop it counts one turn, so
            of `train.accumulate` parts it counts one.
        collectives: what the devices tell each other.
    """

    seconds: float
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temporary_bytes: int
    flops: float
    collectives: list[Collectives]

    @property
    def total_bytes(self) -> int:
        """The memory of a device that the step takes."""
        inside = self.argument_bytes + self.temporary_bytes
        return inside + self.output_bytes - self.alias_bytes


def tpu_devices(name: str) -> Sequence[jax.Device]:
    """The devices of a slice, which programs can be compiled for but not run on.

    Everything else in this process is to run on the CPU, whatever is here.

    Args:
        name: generation and shape, as in `v5e:4x8`.

    Raises:
        UsageError: there is no such slice, or no compiler for it.
    """
    match = re.fullmatch(r"([a-z0-9]+):(\d+(?:x\d+)*)", name)
    if match is None:
        raise _unknown(name, "must be GENERATION:SHAPE")
    for variable, value in _ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    jax.config.update("jax_platforms", "cpu")
    # What is compiled for devices that are not here cannot be read again.
    jax.config.update("jax_enable_compilation_cache", False)
    options: dict[str, object] = {}
    if match[1] == "v4":
        options["chip_config_name"] = "megacore"  # as JAX has it there: one device a chip
    if set(match[2].split("x")) == {"1"}:
        options["chips_per_host_bounds"] = (1, 1, 1)
    try:
        found = topologies.get_topology_desc(name, "tpu", **options)
    except jax.errors.JaxRuntimeError as error:
        said = one_line(error)
        if "INVALID_ARGUMENT" in said:
            raise _unknown(name, f"is no TPU slice ({said.partition(': ')[2]})") from error
        raise UsageError(f"the TPU compiler cannot be used: {said[:300]}") from error
    except RuntimeError as error:
        raise UsageError(
            "--topology needs the TPU compiler, which is not installed: pip install "
            "'jaxtrain[tpu]' (for Linux on x86-64)"
        ) from error
    return found.devices


def compile_step(run: Run, name: str) -> CompiledStep:
    """Compiles the training step of a run whose mesh is of `tpu_devices`.

    Raises:
        UsageError: it does not fit into a device's memory, in the compiler's own words.
    """
    config = run.config
    form = feed.form(run.dataset.train, config.data, run.mesh, config.parallel.mode)
    console = open_console(sys.stderr, time.monotonic)
    console.message(f"compiling the step for {name}, which takes seconds to minutes")
    console.close()
    began = time.monotonic()
    lowered = form.lower_calls(
        run.step,
        run.abstract,
        run.rows,
        run.steps_per_call,
    )
    try:
        # In a thread, so that Ctrl-C ends it.
        with futures.ThreadPoolExecutor(1) as pool:
            program = pool.submit(lowered.compile).result()
    except jax.errors.JaxRuntimeError as error:
        raise _refused(run, name, one_line(error), resident=form.resident) from error
    memory, costs, text = program.memory_analysis(), program.cost_analysis(), program.as_text()
    assert memory is not None
    assert costs is not None
    assert text is not None
    return CompiledStep(
        seconds=time.monotonic() - began,
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        alias_bytes=memory.alias_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        flops=costs["flops"],
        collectives=collectives(text),
    )


def _unknown(name: str, what: str) -> UsageError:
    return UsageError(f"--topology={name} {what}; as in {_EXAMPLES}")


def _refused(run: Run, name: str, words: str, *, resident: bool) -> UsageError:
    """What the compiler says of a step that it does not compile, and what to do."""
    if "RESOURCE_EXHAUSTED" not in words:
        return UsageError(f"the step cannot be compiled for {name}: {words[:300]}")
    said = words.partition("RESOURCE_EXHAUSTED: ")[2][:300]
    fixes = ["lower train.batch_size", "raise train.accumulate"]
    if resident:
        fixes.append("set data.cache=memory")
    if run.mesh.size == run.mesh.shape["data"] > 1:
        jit = "parallel.mode=jit, " if run.config.parallel.mode != "jit" else ""
        fixes.append(f"split the model with {jit}parallel.mesh=fsdp=-1 and parallel.rules=fsdp")
    return UsageError(
        f"the step does not fit a device of {name}: {said.rstrip('.')}; "
        f"{', '.join(fixes[:-1])} or {fixes[-1]}"
    )
