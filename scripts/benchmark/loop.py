"""The real training loop against a bare step, in turns, in one process.

Run by `scripts/benchmark.py`. It calls `jaxtrain.train.train` with a recipe as it is, and only
wraps the compiled update: at the end of every chunk of calls it waits for the device, notes the
time, runs as many bare steps, and lets the loop go on. So both see the same machine, whoever else
uses it.

    python scripts/benchmark/loop.py RECIPE CHUNK_STEPS PAIRS [SAVE_EVERY_STEPS]

Prints one JSON object: `chunks`, a list of {"seconds", "bare_seconds", "save_seconds"} of
CHUNK_STEPS of the real loop, of the bare steps around them, and of the saves in them.
"""

import collections
import contextlib
import functools
import io
import json
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxtrain import keys, session, train
from jaxtrain.config import TrainRequest, load_recipe, resolve
from jaxtrain.normalise import unit_interval
from jaxtrain.parallel.compile import Compiled
from jaxtrain.parallel.in_flight import MAX_IN_FLIGHT
from jaxtrain.setup import Run

# Chunks at the start that are not counted: caches and clocks warm up.
WARM_UP = 2


def bare_chunk(run: Run) -> Callable[[int], float]:
    """The least that a training step can be: same model, augmentation, optimizer, and no more.

    Its batch never changes and lies on the device, as bytes; there are no metrics, no masked rows,
    no data to choose.

    Returns:
        A function that runs a number of steps, at most `MAX_IN_FLIGHT` in flight as in the real
        loop, and returns the seconds that they took.
    """
    fixed = run.fixed
    optimizer = fixed.optimizer

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: Any, image: jax.Array, label: jax.Array, row: jax.Array) -> Any:
        count, params, collections, opt_state = state

        def loss_fn(trained: Any) -> tuple[jax.Array, Any]:
            changed = fixed.augment(keys.step_key(0, count, "augment"), unit_interval(image), row)
            logits, updated = fixed.model.apply(
                optimizer.whole(trained, params),
                collections,
                fixed.normalise(changed),
                row=row,
                key=keys.step_key(0, count, "dropout"),
            )
            return fixed.loss(logits, label).mean(), updated

        grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
        (loss, collections), gradients = grad_fn(optimizer.trained(params))
        rate = fixed.schedule(count)
        params, opt_state = optimizer.update(gradients, opt_state, params, rate)
        return (count + 1, params, collections, opt_state), loss

    created = run.create_state()
    opt_state = optimizer.init(created.params)
    state = (created.step, created.params, created.collections, opt_state)
    indices = run.sampler.indices(1)
    image = jnp.asarray(run.dataset.train.read(indices))
    label = jnp.asarray(run.dataset.train.labels[indices])
    row = jnp.arange(len(indices))
    jax.block_until_ready((image, label, row))

    def run_chunk(steps: int) -> float:
        nonlocal state
        began = time.perf_counter()
        in_flight: collections.deque[jax.Array] = collections.deque()
        for _ in range(steps):
            if len(in_flight) == MAX_IN_FLIGHT:
                in_flight.popleft().block_until_ready()
            state, loss = step(state, image, label, row)
            in_flight.append(loss)
        jax.block_until_ready(state)
        return time.perf_counter() - began

    run_chunk(1)
    return run_chunk


class Interleaved:
    """The real update, which lets bare steps run after every `chunk_steps` or so of its own."""

    def __init__(self, update: Compiled, bare: Callable[[int], float], chunk_steps: int):
        self.seconds: list[float] = []
        self.bare_seconds: list[float] = []
        self.save_seconds: list[float] = []
        self._update = update
        self._bare = bare
        self._chunk_steps = chunk_steps
        self._steps = chunk_steps // 2  # so that reports and saves fall into the middle of a chunk
        self._saving = 0.0
        self._began = time.perf_counter()

    def __call__(self, state: Any, feed: Any, asked: bool) -> Any:
        """One call of the real loop: of several steps, `feed` is their indices and their number."""
        if self._steps >= self._chunk_steps:
            jax.block_until_ready(state)
            share = self._chunk_steps / self._steps
            self.seconds.append(share * (time.perf_counter() - self._began))
            self.save_seconds.append(self._saving)
            self.bare_seconds.append(share * self._bare(self._steps))
            self._steps = 0
            self._saving = 0.0
            self._began = time.perf_counter()
        self._steps += int(feed[1]) if isinstance(feed, tuple) else 1
        return self._update(state, feed, asked)

    def saved(self, seconds: float) -> None:
        """Takes the time of a save, as the loop sees it."""
        self._saving += seconds

    def chunks(self) -> list[dict[str, float]]:
        """The whole chunks after the warm-up, each with the mean of the bare ones around it."""
        return [
            {
                "seconds": self.seconds[i],
                "bare_seconds": (self.bare_seconds[i - 1] + self.bare_seconds[i]) / 2,
                "save_seconds": self.save_seconds[i],
            }
            for i in range(WARM_UP, len(self.seconds))
        ]


def measure(
    recipe: str, chunk_steps: int, pairs: int, save_every: int, workdir: pathlib.Path
) -> Interleaved:
    """Trains with a packaged recipe, no evaluations, and interleaves it."""
    overrides = {
        "train.epochs": "None",
        "train.steps": str((pairs + WARM_UP) * chunk_steps),
        "schedule.warmup_steps": "None",
        "schedule.warmup_epochs": "None",
        "eval.every_epochs": "0",
        "checkpoint.every_epochs": "None" if save_every else "0",
        "checkpoint.every_steps": str(save_every) if save_every else "None",
    }
    config, sources = resolve(load_recipe(recipe), overrides)
    made: list[Interleaved] = []
    compile_update, save = train._compile_update, session.Session.save

    def interleaved_update(run: Run, *rest: Any) -> Interleaved:
        made.append(Interleaved(compile_update(run, *rest), bare_chunk(run), chunk_steps))
        return made[0]

    def timed_save(started: session.Session, state: Any, **options: bool) -> None:
        began = time.perf_counter()
        save(started, state, **options)
        made[0].saved(time.perf_counter() - began)

    train._compile_update, session.Session.save = interleaved_update, timed_save
    train.train(
        TrainRequest(
            config=config,
            config_name=recipe,
            workdir=workdir,
            fresh=False,
            extend=False,
            sources=sources,
        )
    )
    return made[0]


def main() -> None:
    """Reads the command line, measures, prints."""
    recipe = sys.argv[1]
    chunk_steps, pairs, save_every = (*map(int, sys.argv[2:]), 0)[:3]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        interleaved = measure(recipe, chunk_steps, pairs, save_every, pathlib.Path(folder) / "run")
    print(json.dumps({"chunks": interleaved.chunks()}))


if __name__ == "__main__":
    main()
