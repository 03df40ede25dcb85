"""How far single examples would move the weights: the norms of per-example gradients."""

from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from jaxtrain.data import Batch
from jaxtrain.models import Model
from jaxtrain.normalise import Normalise
from jaxtrain.parallel.mesh import ROW_AXES, on_cpu, row_parts
from jaxtrain.state import tree_bytes
from jaxtrain.step import eval_logits
from jaxtrain.tasks import Task

# What the gradients of the examples that a device has at a time may take. CPU devices share the
# host's memory, and there more at a time bring nothing.
_BYTES: Final = 2**30
_CPU_BYTES: Final = 2**27
# More rows at a time than these bring nothing anywhere.
_MOST_ROWS: Final = 256


def norms_rows(params: Any, examples: int, mesh: Mesh) -> int:
    """Rows of the batches of `norms_step`: as many as memory has room for, and no more than needed.

    Args:
        params: the parameters, abstract or not.
        examples: how many there are.
        mesh: the devices.
    """
    room = (_CPU_BYTES if on_cpu(mesh) else _BYTES) // max(1, tree_bytes(params))
    parts = row_parts(mesh)
    return parts * max(1, min(room, _MOST_ROWS, -(-examples // parts)))


def norms_step(
    model: Model,
    normalise: Normalise,
    task: Task,
    variables: dict[str, Any],
    batch: Batch,
    *,
    mesh: Mesh,
    flip_average: bool = False,
) -> dict[str, jax.Array]:
    """The norm of the gradient of every example's own loss by all parameters, frozen ones too.

    The network is that of evaluation: batch statistics are the running ones, nothing is dropped.
    Each device works on its own rows and on a whole copy of the parameters, as XLA, left to divide
    `vmap(grad)` over devices, has each of them do all rows of a convolution.

    Args:
        model: the network.
        normalise: what it sees of an image.
        task: its results' `loss` is the loss.
        variables: `TrainState.model`.
        batch: the global batch.
        mesh: the devices.
        flip_average: as for `eval_step`.

    Returns:
        `gradient_norm` float32, the Euclidean norm, and the batch's `mask`, each `[batch]`.
    """

    def of_example(variables: dict[str, Any], example: Batch) -> jax.Array:
        alone = jax.tree.map(lambda leaf: leaf[jnp.newaxis], example)

        def loss(params: Any) -> jax.Array:
            changed = {**variables, "params": params}
            logits = eval_logits(model, normalise, changed, alone, flip_average=flip_average)
            return task.results(logits, alone.label)["loss"][0]

        gradient = jax.grad(loss)(variables["params"])
        leaves = [leaf.astype(jnp.float32) for leaf in jax.tree.leaves(gradient)]
        return jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in leaves))

    rows = PartitionSpec(ROW_AXES)
    norms = jax.shard_map(
        jax.vmap(of_example, in_axes=(None, 0)),
        mesh=mesh,
        in_specs=(PartitionSpec(), rows),
        out_specs=rows,
        check_vma=False,  # along `model` every device has the same
    )
    return {"gradient_norm": norms(variables, batch), "mask": batch.mask}
