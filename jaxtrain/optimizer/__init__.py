"""Optimizers and learning-rate schedules, by explicit tables over Optax."""

from jaxtrain.optimizer.schedules import SCHEDULES, Schedule, Span, build_schedule
from jaxtrain.optimizer.table import OPTIMIZERS, build, rules_in_effect
from jaxtrain.optimizer.update import Optimizer, like_parameters

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "Optimizer",
    "Schedule",
    "Span",
    "build",
    "build_schedule",
    "like_parameters",
    "rules_in_effect",
]
