"""What a run's folder holds, and the words for a folder that somebody has."""

import re

from jaxtrain.errors import UsageError
from jaxtrain.files import AnyPath

CONFIG, CLASSES, DATA, RESULT = "config.json", "classes.json", "data.json", "result.json"
LEFT_OUT = "left_out.json"
SWEEP = "sweep.png"
METRICS, TENSORBOARD, CHECKPOINTS, EVAL = "metrics.jsonl", "tensorboard", "checkpoints", "eval"
LOCK = ".lock"

# A folder with no more than these was left by a start that died before it wrote its config.
LEFTOVER = re.compile(
    r"\.lock(\.\w+\.tmp)?|(classes|data)\.json|\.(config|classes|data)\.json\..+\.tmp"
)


def held_error(path: AnyPath, holder: str) -> UsageError:
    """Somebody else has the folder."""
    return UsageError(
        f"workdir {path} is held by a live run, {holder}; wait for it, stop it, or start "
        "another run beside it with --fresh"
    )
