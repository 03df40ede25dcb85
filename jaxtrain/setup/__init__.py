"""Config to Run: everything that is decided before the first step, and nothing written yet."""

from jaxtrain.setup.build import build, state_shardings
from jaxtrain.setup.run import Run, epochs_text, replicas_text
from jaxtrain.setup.schedule import build_plan, build_schedule

__all__ = [
    "Run",
    "build",
    "build_plan",
    "build_schedule",
    "epochs_text",
    "replicas_text",
    "state_shardings",
]
