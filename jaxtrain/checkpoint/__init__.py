"""Checkpoints: one Orbax step with the items `model`, `training` and `meta`.

`model` is what evaluation needs, `training` the rest of the state, `meta` a JSON object with the
config, the class names, the versions, the best evaluation so far and a checksum of every array, so
that a step says what it is and a damaged one is noticed (Orbax itself loads a flipped byte).
"""

from jaxtrain.checkpoint.on_devices import checksums
from jaxtrain.checkpoint.orbax import is_step_name, list_steps
from jaxtrain.checkpoint.reading import (
    agreed_steps,
    read_located,
    read_meta,
    resolve_step,
    restore_model,
    restore_newest,
    restore_state,
)
from jaxtrain.checkpoint.writing import Best, Checkpoints

__all__ = [
    "Best",
    "Checkpoints",
    "agreed_steps",
    "checksums",
    "is_step_name",
    "list_steps",
    "read_located",
    "read_meta",
    "resolve_step",
    "restore_model",
    "restore_newest",
    "restore_state",
]
