"""Small runs of the step itself, for the tests of the rooms that have a part in it."""

import dataclasses
import functools
import itertools
from fractions import Fraction

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from helpers import IMAGE_SHAPE, split

from jaxtrain import augment, data, losses, models, optimizer, setup, state
from jaxtrain.config.schema import (
    DataConfig,
    MlpConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
)
from jaxtrain.feed import Feed
from jaxtrain.models.layers import RowDropout, StochasticDepth
from jaxtrain.models.norms import BatchNorm
from jaxtrain.normalise import Normalise
from jaxtrain.parallel.compile import PMAP_AXIS
from jaxtrain.parallel.layout import parameter_shardings
from jaxtrain.parallel.mesh import build_mesh
from jaxtrain.step import Fixed, Resident, gather, train_step

BATCH = 16
TRAIN = split(37, name="train")
ADAM = OptimizerConfig(learning_rate=0.01)
LOSS = losses.training_loss("softmax", 0.1, None)
# Its updates are the gradients' size: unlike Adam's first ones, which are the sign of a gradient
# that may be rounding alone, they differ between layouts by no more than rounding does.
MOMENTUM = OptimizerConfig(name="sgd", learning_rate=0.1, momentum=0.9)


class Convolving(nn.Module):
    """A network with all that a ResNet has, and quickly compiled."""

    @nn.compact
    def __call__(self, image, *, row, mask, train, axis=None):
        hidden = nn.Conv(8, (3, 3), use_bias=False)(image)
        hidden = BatchNorm(name="stem_norm")(hidden, mask=mask, train=train, axis=axis)
        hidden = StochasticDepth(0.3)(nn.relu(hidden), row=row, train=train)
        hidden = RowDropout(0.3)(hidden.mean((1, 2)), row=row, train=train)
        return nn.Dense(10)(hidden)


class Plain(nn.Module):
    """A user's network with Flax's own layers, which know of no rows and no devices."""

    @nn.compact
    def __call__(self, image, train):
        hidden = nn.Dense(8)(image.reshape(len(image), -1))
        hidden = nn.BatchNorm(use_running_average=not train, name="norm")(hidden)
        hidden = nn.Dropout(0.5, deterministic=not train)(nn.relu(hidden))
        return nn.Dense(10)(hidden)


@functools.cache
def fixed(
    *,
    report_steps: int = 0,
    accumulate: int = 1,
    name: str = "mlp",
    dtype: str = "float32",
    operations: str = "flip|noise(0.1)",
    updates: OptimizerConfig = ADAM,
    loss: losses.Loss = LOSS,
    ema_decay: float | None = None,
) -> Fixed:
    """What a small run has; cached, as a jit's own cache goes by it."""
    model = models.build(
        ModelConfig(dtype=dtype, mlp=MlpConfig(hidden_sizes=(12,), dropout=0.3)), 10
    )
    if name == "convolving":
        module = Convolving()
        takes = frozenset({"row", "mask", "train", "axis"})
        model = dataclasses.replace(model, module=module, takes=takes)
    if name == "plain":
        model = dataclasses.replace(model, module=Plain(), takes=frozenset({"train"}))
    params = state.abstract_model(model, IMAGE_SHAPE, 10)["params"]
    schedule = optimizer.build_schedule(
        ScheduleConfig(name="cosine"),
        updates.learning_rate,
        optimizer.Span(20, 0, Fraction(37, BATCH)),
    )
    return Fixed(
        model=model,
        augment=augment.build(operations),
        normalise=Normalise((0.4,), (0.3,)),
        loss=loss,
        optimizer=optimizer.build(updates, params),
        schedule=schedule,
        report_steps=report_steps,
        accumulate=accumulate,
        unroll=name != "mlp",
        ema_decay=ema_decay,
    )


def new_state(mesh, same: Fixed | None = None, rules: str = "replicated") -> state.TrainState:
    same = same or fixed()
    create = functools.partial(
        state.create,
        same.model,
        same.optimizer,
        image_shape=IMAGE_SHAPE,
        averages=same.ema_decay is not None,
    )
    abstract = jax.eval_shape(create, seed=np.uint32(5))
    of_params = parameter_shardings(rules, abstract.params, mesh)
    lies = setup.state_shardings(same.optimizer, abstract, of_params, mesh)
    return jax.jit(create, out_shardings=lies)(seed=np.uint32(5))


@functools.cache
def trained(
    devices: int,
    cache: str,
    steps: int,
    *,
    most: int = 1,
    lengths=None,
    mode: str = "jit",
    mesh: str = "data=-1",
    rules: str = "replicated",
    **options,
):
    """The state after some steps, and every call's metrics, all on the host.

    `most` steps a call, or fewer: `lengths` says how many in each.
    """
    same = fixed(**options)
    if mode == "pmap":
        same = dataclasses.replace(same, axis=PMAP_AXIS)
    built = build_mesh(mesh, jax.devices()[:devices])
    feed = Feed(TRAIN, DataConfig(cache=cache), built, mode)
    current = new_state(built, same, rules)
    step = functools.partial(train_step, same)
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), current
    )
    update = feed.compile_calls(step, abstract, BATCH, most)
    ends = np.cumsum([0, *(lengths or [1] * steps)]).tolist()
    calls = [range(a + 1, b + 1) for a, b in itertools.pairwise(ends)]
    history = []
    batches = data.Sampler(TRAIN.size, BATCH, 5).batches(steps)
    for _, batch in feed.calls(batches, calls, most):
        (current, metrics), stops = update(current, batch, False)
        assert int(stops) == 0
        history.append(jax.device_get(metrics))
    return jax.device_get(current), history


def leaves_equal(a, b) -> None:
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(one, other)


def close(one, other, rtol=2e-5, atol=2e-6):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def batch_of(indices) -> data.Batch:
    """The rows of these examples of `TRAIN`; -1 is a masked one."""
    resident = Resident(jnp.asarray(TRAIN.images), jnp.asarray(TRAIN.labels))
    return gather(resident, jnp.asarray(indices, jnp.int32))
